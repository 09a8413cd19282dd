"""What session root must not be able to change or read of the host, and what must work inside nevertheless.

Each row is one command line in a real session of root. The host's side is looked at from the host afterwards, never
only from inside.
"""

import os
import shlex
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import Home, open_home
from waypoint.linux.calls.libc import syscall

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay")]

KEYCTL_READ = 11
ADD_KEY = 248  # x86-64; python in the session calls the same


@pytest.fixture(scope="module")
def place() -> Iterator[Home]:
    """A home with two live sessions of root: `main` and `other`."""
    with open_home("isolation") as home:
        home.must("shell", "-d", "main", "--user", "root")
        home.must("shell", "-d", "other", "--user", "root")
        yield home


def inside(home: Home, text: str, branch: str = "main") -> tuple[int, str]:
    done = home.cli("exec", "-b", branch, "--", text)
    return done.code, done.stdout


def read_setting(path: str) -> str:
    return Path(path).read_text()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/proc/sys/kernel/core_pattern", "|/tmp/evil"),
        ("/proc/sys/kernel/hostname", "evil"),
        ("/proc/sys/vm/overcommit_memory", "2"),
        ("/proc/sys/net/ipv4/ip_forward", "1"),
        ("/proc/irq/default_smp_affinity", "1"),
        ("/proc/mtrr", "disable=0"),
        ("/proc/sysrq-trigger", "b"),
        ("/sys/kernel/mm/ksm/run", "2"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "never"),
    ],
)
def test_a_setting_of_the_hosts_kernel_cannot_be_written(place: Home, path: str, value: str) -> None:
    before = read_setting(path) if os.path.exists(path) and os.access(path, os.R_OK) else ""
    code, said = inside(place, f"echo {value!r} > {path}")
    assert code != 0, said
    assert any(word in said for word in ("Read-only", "Permission denied", "No such file")), said
    if before:
        assert read_setting(path) == before


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        ("umount /proc/sys", "must be superuser|permission|denied|not permitted"),
        ("mount -o remount,rw,bind /proc/sys", "permission|denied|not permitted|superuser"),
        ("mount -t tmpfs none /mnt", "permission denied|must be superuser|not permitted"),
        ("mknod /tmp/disk b 254 0", "not permitted"),
        ("hostname evil", "must be root|not permitted|permission"),
        ("date -s 2001-01-01", "not permitted"),
        ("nice -n -15 true 2>&1 | grep .", "cannot set niceness|Permission denied"),
        ("chroot /proc/1/root/../../.. cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern", "Read-only"),
        ("swapoff -a; swapon /tmp/x", "swapon"),
        ("ip link add evil type dummy", "not permitted|not found"),
        ("iptables -P INPUT DROP", "Permission|not permitted|not found|denied|must be root"),
        ("echo 1 > /sys/fs/cgroup/cgroup.procs", "denied|Read-only|No such"),
    ],
)
def test_what_needs_power_over_the_kernel_is_refused_in_words(place: Home, attempt: str, words: str) -> None:
    code, said = inside(place, f"({attempt}) 2>&1 | grep -iE {words!r}")
    assert code == 0, said


@pytest.mark.parametrize("name", ["reboot", "init_module", "bpf", "kexec_load", "settimeofday"])
def test_a_dangerous_system_call_is_refused(place: Home, name: str) -> None:
    numbers = {"reboot": 169, "init_module": 175, "bpf": 321, "kexec_load": 246, "settimeofday": 164}
    magic = "0xfee1dead, 672274793, 0x89abcdef, 0" if name == "reboot" else "0, 0, 0, 0"
    if name == "bpf":
        magic = "0, ctypes.create_string_buffer(b'\\x01\\0\\0\\0\\x04\\0\\0\\0\\x04\\0\\0\\0\\x01\\0\\0\\0', 128), 128"
    if name == "settimeofday":
        magic = "ctypes.create_string_buffer(16), 0"
    program = (
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); "
        f"r = l.syscall({numbers[name]}, {magic}); print(r, ctypes.get_errno())"
    )
    code, said = inside(place, f'python3 -c "{program}"')
    assert code == 0, said
    result, number = said.split()
    assert result == "-1"
    assert number in ("1", "13", "38"), said  # EPERM, EACCES, or the kernel has no such call


def test_a_device_of_the_host_that_lies_in_the_base_does_not_open(place: Home, tmp_path: Path) -> None:
    node = tmp_path / "zero"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    os.chmod(node, 0o666)
    with node.open("rb") as zero:
        assert zero.read(1) == b"\0"
    code, said = inside(place, f"head -c1 {node}")
    assert code != 0
    assert "Permission denied" in said


def test_there_are_no_host_devices_and_no_disk(place: Home) -> None:
    _code, said = inside(place, "ls /dev")
    expected = {
        "fd",
        "full",
        "null",
        "ptmx",
        "pts",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        "tty",
        "urandom",
        "zero",
    }
    assert set(said.split()) == expected


def test_the_home_and_the_control_socket_are_hidden(place: Home) -> None:
    code, said = inside(place, f"ls -A {place.path}; ls -A /run/waypoint; ls {place.runtime}")
    assert code != 0
    assert "api.sock" not in said
    assert "names.db" not in said
    assert "pool" not in said


def test_another_sessions_processes_are_neither_seen_nor_reached(place: Home) -> None:
    place.must("exec", "-b", "other", "--", "sleep 4242 & echo started")
    try:
        code, said = inside(place, "ps -eo args | grep -c '[s]leep 4242'")
        assert (code, said) == (1, "0\n")
        host_pid = next(
            int(pid.name)
            for pid in Path("/proc").iterdir()
            if pid.name.isdigit() and _args(pid) == b"sleep\x004242\x00"
        )
        code, said = inside(place, f"kill -9 {host_pid}")
        assert code != 0, said
        assert Path(f"/proc/{host_pid}").exists()
    finally:
        place.must("exec", "-b", "other", "--", "kill %1")


def _args(pid: Path) -> bytes:
    try:
        return (pid / "cmdline").read_bytes()
    except OSError:
        return b""


def test_another_sessions_files_are_not_seen(place: Home) -> None:
    place.must("exec", "-b", "other", "--", "echo secret > /tmp/of-other")
    code, _said = inside(place, "test -e /tmp/of-other")
    assert code == 1
    assert not os.path.exists("/tmp/of-other")


def test_files_of_the_host_are_changed_only_in_the_session(place: Home, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    code, said = inside(place, f"echo after > {file}; rm -rf /etc/hostname; cat {file}")
    assert (code, said) == (0, "after\n")
    assert file.read_text() == "before"


def test_the_hosts_processes_are_not_seen(place: Home) -> None:
    code, said = inside(
        place, f"test -e /proc/{os.getpid()}/environ && tr '\\0' '\\n' < /proc/{os.getpid()}/cmdline | grep pytest"
    )
    assert code == 1, said
    code, said = inside(place, "tr '\\0' ' ' < /proc/1/cmdline")
    assert said.startswith("/bin/sh /.waypoint/init.sh ")


def test_the_hosts_loopback_is_not_reached(place: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, said = inside(place, f"exec 9<>/dev/tcp/127.0.0.1/{port}")
        assert code != 0
        assert "refused" in said


def test_the_hosts_cgroups_are_not_there(place: Home) -> None:
    code, said = inside(place, "ls -A /sys/fs/cgroup | wc -l")
    assert (code, said.strip()) == (0, "0")


def test_a_key_of_the_hosts_keyring_is_not_read(place: Home) -> None:
    """The test process holds a key in its session keyring, which the daemon inherits: the session must not."""
    payload = b"a secret of the host"
    key = syscall("add_key", b"user", b"waypoint-test", payload, len(payload), -3)
    read = (
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); b = ctypes.create_string_buffer(64); "
        f"print(l.syscall(250, {KEYCTL_READ}, {key}, b, 64, 0), b.value)"
    )
    code, said = inside(place, f'python3 -c "{read}"; cat /proc/keys')
    assert code == 0
    assert "secret" not in said
    assert said.startswith("-1")
    assert "waypoint-test" not in said


def test_shared_memory_of_the_host_is_not_seen(place: Home) -> None:
    name = Path(f"/dev/shm/waypoint-test-{os.getpid()}")
    name.write_text("host")
    try:
        assert inside(place, f"test -e {name}")[0] == 1
    finally:
        name.unlink()


def test_session_root_holds_no_capability_over_the_host(place: Home) -> None:
    """CAP_SYS_ADMIN, SYS_MODULE, SYS_RAWIO, SYS_BOOT, NET_ADMIN, SYS_PTRACE, MKNOD, SYS_TIME are gone even from the
    bounding set.
    """
    _code, said = inside(place, "grep CapBnd /proc/self/status")
    bounding = int(said.split()[1], 16)
    for number in (21, 16, 17, 22, 12, 19, 27, 25):
        assert not bounding >> number & 1


PING = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
s.settimeout(5)
s.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]), ("127.0.0.1", 0))
assert s.recv(99)
"""
LOOPBACK = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname())
"""
SHARED = "from multiprocessing import shared_memory as m; s = m.SharedMemory(create=True, size=9); s.unlink()"
POOL = "import multiprocessing as m; p = m.Pool(2); print(p.map(abs, [-1])); p.close()"
COMMIT = "git -c user.name=a -c user.email=b commit -q --allow-empty -m x"


def python(program: str) -> str:
    """A command line for the session's shell."""
    return f"python3 -c {shlex.quote(program)}"


WORKS = {
    "su": "su -s /bin/sh nobody -c 'id -un' | grep -x nobody",
    "useradd": "useradd -m wptester && id wptester && userdel -r wptester 2>/dev/null; ! id wptester 2>/dev/null",
    "chown": "touch /tmp/f && chown nobody:nogroup /tmp/f && stat -c %U /tmp/f | grep -x nobody",
    "ping loopback": python(PING),
    "port 80 for nobody": "su -s /bin/sh nobody -c "
    + shlex.quote(python("import socket; socket.create_server(('127.0.0.1', 80))")),
    "loopback": python(LOOPBACK),
    "strace": "strace -f -o /tmp/trace /bin/true && grep -q execve /tmp/trace",
    "dev shm": python(SHARED),
    "semaphores": python(POOL),
    "unix sockets": python("import socket; s = socket.socket(1); s.bind('/tmp/s1'); s.listen()"),
    "a terminal of its own": "script -qec 'tty' /dev/null | grep /dev/pts",
    "dev tty": "test -w /dev/tty && : > /dev/tty",
    "set-uid programs": "su nobody -s /bin/bash -c 'mount' | grep -q overlay",
    "file capabilities": "cp /bin/true /tmp/t && setcap cap_net_raw+ep /tmp/t && getcap /tmp/t | grep net_raw",
    "nested user namespaces": "unshare -Ur id -u | grep -x 0",
    "hard links": "cp -r /etc/skel /tmp/d && ln /tmp/d/.bashrc /tmp/l",
    "renamed lower folders": "mv /usr/share/doc /usr/share/d2 && ls /usr/share/d2/bash",
    "extended attributes": "touch /tmp/x && " + python("import os; os.setxattr('/tmp/x', 'user.a', b'1')"),
    "oom score": "echo 500 > /proc/self/oom_score_adj",
    "git": f"rm -rf /tmp/g && git init -q /tmp/g && (cd /tmp/g && {COMMIT} && git log --oneline)",
    "monotonic clock": python("import time; assert time.monotonic() > 0"),
    "proc of its own": "ps -o comm= -p 1 | grep -qx sh && test $(ls -d /proc/[0-9]* | wc -l) -lt 20",
}


@pytest.mark.parametrize("what", WORKS)
@pytest.mark.requires("strace", "git")
def test_it_works_inside(place: Home, what: str) -> None:
    code, said = inside(place, WORKS[what])
    assert code == 0, said


def test_packages_install_inside_and_not_on_the_host(place: Home) -> None:
    """With the host's network, since a private one has no way out yet."""
    place.must("shell", "-d", "net", "--user", "root", "--net", "host")
    try:
        done = place.cli(
            "exec",
            "-b",
            "net",
            "--",
            "apt-get update -qq && apt-get install -y -qq sl >/dev/null && dpkg -s sl",
            timeout_s=300,
        )
        assert done.code == 0, done.stdout
        assert not os.path.exists("/usr/games/sl")
        install = "python3 -m venv /tmp/v && /tmp/v/bin/pip install -q six && /tmp/v/bin/python -c 'import six'"
        done = place.cli("exec", "-b", "net", "--", install, timeout_s=300)
        assert done.code == 0, done.stdout
        assert not os.path.exists("/tmp/v")
    finally:
        place.must("stop", "net", "--discard")
