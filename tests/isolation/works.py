"""Programs and tasks that must work in a session: one row for each, a bash script that succeeds only if it works.

A script starts in an empty folder of its own and ends at the first command that fails; then its background jobs are
killed. It does not depend on other scripts, and can run several times in the same session.
"""

from typing import NamedTuple

from tests.isolation.supplies import URL

PRELUDE = """
set -eo pipefail
cd "$(mktemp -d)"
trap 'kill $(jobs -p) 2>/dev/null || :' EXIT
wait_until() { # for at most ten seconds
    for _ in $(seq 200); do
        if eval "$1"; then return; fi
        sleep 0.05
    done
    echo "not within ten seconds: $1"
    false
}
"""
COMMIT = "git -c user.name=a -c user.email=b commit -qm x"


class Work(NamedTuple):
    """`needs`: words of `requires`. `is_users`: an ordinary user runs the script, too. `is_long`: the script takes
    seconds, so it runs in fewer sessions.
    """

    script: str
    needs: tuple[str, ...] = ()
    is_users: bool = True
    is_long: bool = False


def _by_all(script: str, *needs: str) -> Work:
    return Work(script, needs)


def _by_root(script: str, *needs: str) -> Work:
    return Work(script, needs, is_users=False)


def _long(work: Work) -> Work:
    return work._replace(is_long=True)


def _python(program: str) -> Work:
    return Work(f"python3 - <<'END'\n{program}\nEND\n")


_USERS = {
    "su": _long(_by_root("su -s /bin/sh nobody -c 'id -un' | grep -qx nobody")),
    "setpriv": _by_root("setpriv --reuid 33 --regid 33 --clear-groups id -u | grep -qx 33"),
    "useradd": _by_root(
        """
        useradd -m -u 3456 wpnew
        su wpnew -c 'touch ~/x'
        test $(stat -c %U ~wpnew/x) = wpnew
        userdel -rf wpnew 2>/dev/null
        ! id wpnew 2>/dev/null
        """
    ),
    "chown": _by_root("touch f; chown nobody:nogroup f; test $(stat -c %U:%G f) = nobody:nogroup"),
    "chroot": _by_root("chroot / id -u | grep -qx 0"),
    "tar with owners": _by_root(
        "mkdir t; touch t/f; chown 5:6 t/f; tar cf t.tar t; rm -r t; tar xf t.tar; test $(stat -c %u:%g t/f) = 5:6"
    ),
    "a setuid program": _by_root(
        """
        chmod 755 .
        cp /usr/bin/id .
        chown 33 id
        chmod 4755 id
        setpriv --reuid 34 --clear-groups ./id -u | grep -qx 33
        """
    ),
    "setuid programs of the base": _by_all('passwd -S | grep -q "^$(id -un) "'),
    "file capabilities": _by_root("cp /bin/true .; setcap cap_net_raw+ep true; getcap true | grep -q net_raw; ./true"),
    "sudo": _by_root(
        """
        echo 'nobody ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/wptest
        sudo -u nobody sudo -n id -u | grep -qx 0
        """,
        "network",
    ),
}

_FILES = {
    "hard links": _by_all("cp -r /etc/skel s; ln s/.bashrc l; test $(stat -c %h l) = 2"),
    "a renamed lower folder": _by_root(
        "mv /usr/share/doc /usr/share/d2; ls -d /usr/share/d2/bash; mv /usr/share/d2 /usr/share/doc"
    ),
    "extended attributes": _python(
        "import os; os.setxattr('.', 'user.a', b'1'); assert os.getxattr('.', 'user.a') == b'1'"
    ),
    "mkfifo": _by_all("mkfifo f; (echo 42 >f &); grep -qx 42 f"),
    "flock": _by_all("flock f sh -c '! flock -n f true'"),
    "git": _by_all(f"git init -q; touch f; git add f; {COMMIT}; git gc -q; git log --oneline | grep -q x", "git"),
    "/dev/shm": _python(
        "from multiprocessing import shared_memory as m; s = m.SharedMemory(create=True, size=9); s.unlink()"
    ),
    "inotifywait": _by_root(
        """
        inotifywait -qqt 10 -e create . &
        wait_until "grep -qs ^inotify /proc/$!/fdinfo/*"
        touch x
        wait $!
        """,
        "network",
    ),
}

_PROGRAMS = {
    "strace": _by_all("strace -f -o f sh -c /bin/true; grep -q execve f", "strace"),
    "gdb": _by_all("gdb -q -nx -batch -ex starti -ex 'print 41+1' -ex kill /bin/true 2>&1 | grep -q ' = 42'", "gdb"),
    "make -j": _by_all(
        """
        printf 'all: 1 2 3 4 5 6 7 8\\n\\tcat $^ >all\\n%%:\\n\\techo $@ >$@\\n' >Makefile
        make -sj4
        test $(wc -l <all) = 8
        """,
        "make",
    ),
    "gcc": _by_all("echo 'int main(void) { return 42; }' >m.c; gcc -o m m.c; ./m || test $? = 42", "gcc"),
    "node": _by_all(
        """
        node -e 'const s = require("http").createServer((q, a) => a.end("42")).listen(0, "127.0.0.1", async () => {
            const got = await (await fetch(`http://127.0.0.1:${s.address().port}`)).text()
            process.exit(got === "42" ? 0 : 1)
        })'
        """,
        "node",
    ),
    "java": _by_all("java -Xshare:auto -XX:TieredStopAtLevel=1 -version 2>&1 | grep -qi version", "java"),
    "sqlite": _python(
        """
import sqlite3
one, other = (sqlite3.connect("f") for _ in range(2))
one.execute("pragma journal_mode=wal")
one.execute("create table t(x)")
one.execute("insert into t values (42)")
one.commit()
assert other.execute("select x from t").fetchall() == [(42,)]
"""
    ),
    "postgres": _long(
        _by_root(
            """
        bin=$(dirname "$(readlink -f "$(command -v postgres)")")
        as="setpriv --reuid nobody --regid nogroup --clear-groups env HOME=$PWD"
        chown nobody .
        $as $bin/initdb -N -D d >/dev/null
        $as $bin/pg_ctl -w -D d -l log -o "-h '' -k $PWD" start >/dev/null
        $as psql -h $PWD -d postgres -Atc 'select 41+1' | grep -qx 42
        $as $bin/pg_ctl -m immediate -D d stop >/dev/null
        """,
            "postgres",
        )
    ),
    "redis": _by_root(
        """
        service redis-server start >/dev/null
        wait_until "redis-cli ping 2>/dev/null | grep -qx PONG"
        test "$(ps -o user= -C redis-server)" = redis
        service redis-server stop >/dev/null
        """,
        "network",
    ),
    "chromium": _long(
        _by_root(
            """
        echo '<p id=x></p><script>document.getElementById("x").textContent = 41 + 1</script>' >p.html
        chromium --headless --no-sandbox --disable-gpu --dump-dom "file://$PWD/p.html" | grep -q '<p id="x">42</p>'
        """,
            "chromium",
        )
    ),
    "tmux": _by_all(
        """
        tmux -L wp -f /dev/null new-session -d 'tty >f; sleep 99'
        wait_until "grep -qs /dev/pts f"
        tmux -L wp kill-server
        """,
        "tmux",
    ),
    "screen": _by_root(
        "screen -dmS wp sh -c 'tty >f; sleep 99'; wait_until 'grep -qs /dev/pts f'; screen -S wp -X quit", "network"
    ),
    "vi": _by_all("vi -es -u NONE -c 'normal ihello' -c wq f; grep -qx hello f", "vi"),
    "less": _by_all("echo hello >f; script -qec 'less -FX f' /dev/null </dev/null | grep -q hello", "less"),
    "man": _by_all("printf '.TH X 1\\nhello\\n' >x.1; MANPAGER=cat man -l x.1 | grep -q hello", "man"),
    "locale": _by_all("LC_ALL=C.UTF-8 locale charmap | grep -qx UTF-8"),
    "xargs -P": _by_all("test $(seq 40 | xargs -P 8 -n 1 sh -c 'echo $0' | wc -l) = 40"),
    "multiprocessing": _python(
        "import multiprocessing as m; p = m.Pool(4); assert p.map(abs, range(-9, 0)) == [*range(9, 0, -1)]; p.close()"
    ),
}

_INSTALLATION = {
    "apt-get: a daemon with its own user": _by_root(
        f"""
        echo 'deb [trusted=yes] {URL}/debs ./' >/etc/apt/sources.list.d/wptest.list
        only="-o Dir::Etc::sourcelist=sources.list.d/wptest.list -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0"
        apt-get update -qq $only
        apt-get install -yqq $only wptestd >/dev/null
        test $(stat -c %U /var/lib/wptestd) = wptestd
        service wptestd start
        wait_until 'test "$(ps -o user= -p $(cat /run/wptestd.pid))" = wptestd'
        service wptestd stop
        apt-get purge -yqq wptestd >/dev/null
        userdel wptestd
        """
    ),
    "pip": _by_all(
        f"""
        /usr/bin/python3 -m venv v
        PIP_CONFIG_FILE=/dev/null v/bin/pip install -q --index-url {URL}/simple wptest
        v/bin/python -c 'import wptest'
        """
    ),
    "npm": _by_all(
        f"""
        HOME=$PWD npm install -s --no-audit --registry {URL} wptest
        test $(node -p 'require("wptest")') = 42
        test -s node_modules/wptest/ran
        """,
        "npm",
    ),
}

_NETWORK = {
    "ping": _by_all("ping -qc 1 127.0.0.1"),
    "ping without rights": _python(
        """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
s.settimeout(60)
s.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]), ("127.0.0.1", 0))
assert s.recv(99)
"""
    ),
    "port 80": _python("import socket; socket.create_server(('127.0.0.1', 80))"),
    "loopback": _python(
        "import socket as s; l = s.create_server(('127.0.0.1', 0)); s.create_connection(l.getsockname())"
    ),
    "loopback of version 6": _python(
        "import socket as s; l = s.create_server(('::1', 0), family=10); s.create_connection(l.getsockname()[:2])"
    ),
    "unix sockets": _python(
        "import socket; s = socket.socket(1); s.bind('s'); s.listen(); socket.socket(1).connect('s')"
    ),
    "a web server": _by_all(
        """
        echo 42 >x
        busybox httpd -f -p 127.0.0.1:8472 -h . &
        wait_until 'busybox wget -qO- http://127.0.0.1:8472/x 2>/dev/null | grep -qx 42'
        """
    ),
    "logger": _by_all(
        """
        socket='import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind("s"); print(s.recv(99))'
        python3 -c "$socket" >f &
        wait_until 'test -S s'
        logger -u s hello
        wait $!
        grep -q hello f
        """
    ),
    "ssh to self": _by_root(
        """
        mkdir -p /run/sshd ~/.ssh
        ssh-keygen -qt ed25519 -N '' -f key
        cat key.pub >>~/.ssh/authorized_keys
        /usr/sbin/sshd -p 2222 -o PidFile=$PWD/pid
        wait_until 'test -s pid'
        options="-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        ssh -qp 2222 -i key $options 127.0.0.1 id -u | grep -qx 0
        kill $(cat pid)
        """,
        "network",
    ),
}

_KERNEL = {
    "SysV memory": _by_all("i=$(ipcmk -M 4096 | grep -o '[0-9]*$'); ipcs -m -i $i >/dev/null; ipcrm -m $i"),
    "memfd": _python("import fcntl, os; f = os.memfd_create('x', 2); os.write(f, b'x'); fcntl.fcntl(f, 1033, 15)"),
    "mlock": _python(
        "import ctypes; b = ctypes.create_string_buffer(1 << 14); assert not ctypes.CDLL(None).mlock(b, 1 << 14)"
    ),
    "nice": _by_all("test $(nice -n 5 nice) = 5"),
    "renice": _by_all("sleep 99 & renice -n 3 -p $!; ps -o ni= -p $! | grep -qw 3"),
    "taskset": _by_all("test $(taskset -c 0 nproc) = 1"),
    "ulimit": _by_all("ulimit -n 200; test $(ulimit -n) = 200"),
    "oom score": _by_all("echo 500 >/proc/self/oom_score_adj"),
    "clocks": _python("import time; assert time.monotonic() > 0; assert time.clock_gettime(time.CLOCK_BOOTTIME) > 0"),
    "a terminal": _by_all("script -qec tty /dev/null | grep -q /dev/pts"),
    "a terminal of the user's": _by_all("test $(stat -c %u $(tty </dev/stderr)) = $(id -u)"),
    "the controlling terminal": _by_all("test -w /dev/tty; : >/dev/tty"),
    "job control": _by_all(
        "bash -ic 'sleep 99 & kill -STOP %1; kill -CONT %1; kill %1; wait %1 2>/dev/null; test $? = 143'"
    ),
    "processes of its own": _by_all("test $(ps -o comm= -p 1) = sh; test $(ls -d /proc/[0-9]* | wc -l) -lt 60"),
    "cron": _by_root(
        """
        rm -f /run/crond.reboot /tmp/cronned
        echo '@reboot root touch /tmp/cronned' >/etc/cron.d/wptest
        service cron start >/dev/null
        wait_until 'test -e /tmp/cronned'
        service cron stop >/dev/null
        """,
        "network",
    ),
    "at": _by_root(
        """
        rm -f /tmp/atted
        service atd start >/dev/null
        echo 'touch /tmp/atted' | at now 2>/dev/null
        wait_until 'test -e /tmp/atted'
        service atd stop >/dev/null
        """,
        "network",
    ),
}

WORKS: dict[str, Work] = {
    **_USERS,
    **_FILES,
    **_PROGRAMS,
    **{name: _long(work) for name, work in _INSTALLATION.items()},
    **_NETWORK,
    **_KERNEL,
}
