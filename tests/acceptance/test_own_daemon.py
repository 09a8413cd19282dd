"""What is an ordinary user's only, where a daemon of the own serves: one id, walls, other users, what is missing."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.acceptance.alone import OWN, Caller
from tests.acceptance.people import Person, new_person
from tests.homes import Home, open_home
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.tasks.states import task_state

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout", "without-root")]

LACKS, USAGE, FAILED = 3, 2, 125


def test_a_session_outlives_all_of_waypoint(user: Caller) -> None:
    """The next daemon goes into the user namespace of the sessions that run: else it could not enter them."""
    user.must("shell", "main", "-d")
    user.exec("WORD=kept")
    wait_until(lambda: not _killed(user), "all to end")
    assert user.exec("echo $WORD") == "kept\n"
    assert user.must("run", "--", "echo", "entered") == "entered\n"
    user.must("checkpoint", "first")
    user.must("stop", "main", "--discard")
    user.must("rm", "first")


def test_a_user_is_the_same_user_in_the_session_and_can_write_at_home(user: Caller, newcomer: Person) -> None:
    project = newcomer.home / "project"
    project.mkdir()
    os.chown(project, newcomer.uid, newcomer.gid)
    user.must("shell", "mine", "-d", cwd=str(project))
    told = user.exec("id -un; id -u; pwd; echo $HOME", "mine")
    assert told == f"{newcomer.name}\n{newcomer.uid}\n{project}\n{newcomer.home}\n"
    made = "echo x >file; mkdir -p ~/new/deep; echo y >~/new/deep/file; cat file ~/new/deep/file"
    assert user.exec(made, "mine") == "x\ny\n"
    assert list(project.iterdir()) == []
    assert not (newcomer.home / "new").exists()
    user.must("stop", "mine", "--discard")


def test_what_is_bound_is_the_user_s_own(user: Caller, newcomer: Person) -> None:
    shared = newcomer.home / "shared"
    shared.mkdir()
    (shared / "file").write_text("before\n")
    subprocess.run(["chown", "-R", f"{newcomer.uid}:{newcomer.gid}", shared], check=True)
    user.must("shell", "bound", "-d", "--bind", f"{shared}:/mnt/rw", "--bind", f"{shared}:/mnt/ro:ro")
    assert user.exec("cat /mnt/ro/file; echo after >/mnt/rw/file", "bound") == "before\n"
    assert (shared / "file").read_text() == "after\n"
    assert user.try_to("exec", "-b", "bound", "--", "echo no >/mnt/ro/file").returncode == 1
    assert (shared / "file").read_text() == "after\n"
    user.must("stop", "bound", "--discard")


@pytest.mark.requires("strace")
def test_a_session_in_which_a_program_is_traced_is_captured_and_ended(user: Caller) -> None:
    user.must("shell", "main", "-d", "--cwd", "/tmp")
    user.exec("strace -o /tmp/trace sleep 4321 &")
    wait_until(lambda: user.exec("grep -l '^TracerPid:.[1-9]' /proc/[0-9]*/status || true") != "", "it to be traced")
    user.must("checkpoint", "first")
    user.exec("kill %1; wait; pkill -x sleep; true")
    user.must("restore", "first")
    wait_until(lambda: user.exec("pgrep -c -x strace; pgrep -c -x sleep") == "1\n1\n", "both to run again, once")
    user.must("undo")
    user.must("restore", "first")
    user.must("stop", "main", "--discard")
    user.must("rm", "first")


@pytest.mark.requires("strace")
def test_a_tracer_outside_of_the_session_is_named_and_keeps_no_session_from_ending(user: Caller) -> None:
    user.must("shell", "main", "-d", "--cwd", "/tmp")
    user.must("checkpoint", "first")
    (pid,) = (one["pid"] for one in json.loads(user.must("ps", "--json")))
    with _traced(pid) as tracer:
        for verb in (("checkpoint", "second"), ("restore", "first"), ("checkpoint", "second", "--park")):
            done = user.try_to(*verb)
            assert done.returncode == FAILED, done
            assert f"is traced by strace (pid {tracer.pid})" in done.stderr
            assert "next: end the tracer (strace, gdb) and try again" in done.stderr
            assert "without-cgroups" not in done.stderr
    user.must("checkpoint", "second")
    with _traced(pid):
        user.must("stop", "main")
    user.must("rm", "first", "second")


def test_a_network_that_leads_nowhere_is_the_session_s_own(user: Caller) -> None:
    user.must("shell", "net", "-d", "--net", "none")
    server = "python3 -m http.server --bind 127.0.0.1 8099 >/dev/null 2>&1 &"
    user.exec(server, "net")
    fetch = "python3 -c 'import urllib.request; print(urllib.request.urlopen(\"http://127.0.0.1:8099\").status)'"
    wait_until(lambda: user.exec(f"{fetch} 2>/dev/null; true", "net") == "200\n", "a server of the session's own")
    outside = "timeout 5 python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53))' 2>&1 | tail -1"
    assert "Network is unreachable" in user.exec(outside, "net")
    user.must("stop", "net", "--discard")


def test_the_walls_stand_without_root(user: Caller) -> None:
    """Attempts that must be refused: each is one that works outside, or for root, or without the filter."""
    user.must("shell", "main", "-d")
    assert user.exec("grep CapEff /proc/self/status").split() == ["CapEff:", "0000000000000000"]
    assert user.exec("grep ^Seccomp: /proc/self/status").split() == ["Seccomp:", "2"]
    attempts = {
        "unshare --user true": 1,
        "unshare --mount true": 1,
        "mount -t tmpfs none /mnt": 32,
        "echo 1 >/proc/sys/vm/drop_caches": 1,
        "touch /sys/kernel/mm/new": 1,
        f"ls {user.home.path}/names.db": 2,
        "su -c true": 1,
    }
    tried = {one: user.try_to("exec", "--", f"{one} </dev/null >/dev/null 2>&1").returncode for one in attempts}
    assert tried == attempts
    assert user.exec("ip -o addr show scope host | wc -l") != "0\n"
    user.must("stop", "main", "--discard")


def test_nobody_else_reaches_the_user_s_daemon(user: Caller) -> None:
    user.must("shell", "main", "-d")
    with new_person("other", "/bin/bash") as other:
        done = other.can(user.home, "ps")
        assert done.returncode == LACKS, done
    refused = user.home.cli("ps")
    assert (refused.code, "it is another user's own" in refused.stderr) == (3, True), refused
    assert "\n  next: be that user: sudo -u USER waypoint COMMAND\n" in refused.stderr
    user.must("ps")
    socket = user.home.path / "run/api.sock"
    assert (socket.stat().st_mode & 0o777, user.home.path.stat().st_mode & 0o777) == (0o600, 0o700)
    user.must("stop", "main", "--discard")


def test_a_session_gets_no_answer_of_another_home_of_the_same_user(user: Caller, newcomer: Person) -> None:
    """A second home lies where the user has put it. In the session a bind of that place has its socket, for whoever is
    its user, as the session's is.
    """
    second = Caller(Home(newcomer.home / "second/h"), newcomer, "respawn")
    second.must("setup")
    try:
        user.must("shell", "main", "-d", "--bind", f"{newcomer.home}/second:/mnt/second")
        ask = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1] + '/h/run/api.sock'); "
        ask += "s.sendall(b'GET /v1/status HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(s.recv(64))"
        outside = [sys.executable, "-c", ask, f"{newcomer.home}/second"]
        as_user = {"user": newcomer.uid, "group": newcomer.gid, "text": True}
        answered = subprocess.run(outside, capture_output=True, check=True, **as_user)
        assert "200" in answered.stdout
        rename = (
            "import ctypes; ctypes.CDLL(None).prctl(15, b'\\rNSpid:\\t1'); "  # as if it were in no namespace of its own
        )
        for before in ("", rename):
            inside = user.try_to("run", "--", "python3", "-c", before + ask, "/mnt/second")
            assert inside.stdout in ("", "b''\n"), inside  # closed, before or after the request was sent
        user.must("stop", "main", "--discard")
    finally:
        second.must("stop", "--all", "--discard")
        second.must("setup", "--remove", "--yes")


def test_a_terminal_shows_the_session_and_can_leave_it(user: Caller, newcomer: Person) -> None:
    def become() -> None:
        os.setgid(newcomer.gid)
        os.setuid(newcomer.uid)

    command, *words = user.home.argv("shell", "shown")
    with contextlib.closing(
        pexpect.spawn(command, words, env=newcomer.env(user.home), cwd="/", timeout=PATIENCE_S, preexec_fn=become)
    ) as terminal:
        terminal.expect_exact(b"without root: programs are started again")
        terminal.expect_exact(b"[shown] ")
        terminal.sendline(b"id -un | tr a-z A-Z")
        terminal.expect_exact(newcomer.name.upper().encode())
        terminal.send(b"\x1dd")
        terminal.expect(pexpect.EOF)
    assert user.exec("echo still here", "shown") == "still here\n"
    user.must("stop", "shown", "--discard")


def test_a_session_of_root_s_daemon_does_not_show_the_user_s_own_home(user: Caller, newcomer: Person) -> None:
    user.must("ps")
    assert (user.home.path / "names.db").exists()
    with open_home("roots") as home:
        home.must("setup", "--user", newcomer.name)
        assert newcomer.can(home, "shell", "seen", "-d").returncode == 0
        done = newcomer.can(home, "exec", "-b", "seen", "--", f"ls -A {user.home.path}; echo ~/.local/*; touch ~/new")
        assert (done.stdout, done.returncode) == (f"{newcomer.home}/.local/share\n", 0)
        home.must("stop", "seen", "--discard")


def test_there_is_no_other_user_and_nobody_is_let_in(user: Caller, newcomer: Person) -> None:
    done = user.try_to("shell", "others", "-d", "--user", "root")
    assert "next: leave out --user" in done.stderr
    user.must("shell", "others", "-d")
    user.must("stop", "others", "--discard")
    done = user.try_to("shell", "others", "-d", "--bind", f"{newcomer.home}:/mnt/all")
    assert done.returncode == 2, done  # its own home lies there
    done = user.try_to("setup", "--user", "nobody")
    assert "next: have root do it: sudo waypoint" in done.stderr


def test_doctor_and_setup_say_what_is_there(user: Caller) -> None:
    done = user.try_to("doctor", "--json")
    assert done.returncode == LACKS, done.stderr
    rows = {row["capability"]: row for row in json.loads(done.stdout)}
    assert [name for name, row in rows.items() if row["state"] == "missing"] == ["CRIU"]
    assert "started again" in rows["CRIU"]["why"]
    assert rows["limits of sessions"]["state"] == "degraded"
    user.must("setup")
    assert "as Waypoint runs without root" in user.try_to("setup", "--check").stderr


def test_setup_writes_a_unit_for_the_user_s_systemd(newcomer: Person) -> None:
    """Where one runs: a trial of its folder. systemctl is not called for a trial."""
    caller = Caller(Home(newcomer.home / "with-unit/h"), newcomer, "respawn")
    for folder in (caller.home.root, caller.home.root / f"run/user/{newcomer.uid}/systemd"):
        folder.mkdir(parents=True)
    subprocess.run(["chown", "-R", f"{newcomer.uid}:{newcomer.gid}", caller.home.path.parent], check=True)
    caller.must("setup")
    (unit,) = caller.home.root.rglob("systemd/user/waypoint-*.service")
    text = unit.read_text()
    assert f'"--home" "{caller.home.path}" "daemon" "run"' in text
    assert "WantedBy=default.target" in text
    assert "Delegate" not in text
    if shutil.which("systemd-analyze"):
        verify = ["systemd-analyze", "verify", "--user", "--man=no", str(unit)]
        said = subprocess.run(verify, capture_output=True, text=True, check=False)
        assert unit.name not in said.stderr, said
    caller.must("setup", "--remove", "--yes")
    assert list(caller.home.root.rglob("*.service")) == []


def test_a_home_that_cannot_be_made_is_told(newcomer: Person) -> None:
    done = newcomer.can(Home(Path("/proc/none") / OWN), "ps", HOME="/proc/none")
    assert done.returncode == LACKS
    assert "next: name a folder that you can make: waypoint --home DIR setup" in done.stderr
    # DIR: one that the user can make.
    made = Caller(Home(newcomer.home / "elsewhere/h"), newcomer, "respawn")
    made.must("--home", str(made.home.path), "setup")
    made.must("setup", "--remove", "--yes")


def test_a_machine_that_gives_no_user_namespace_is_told(newcomer: Person) -> None:
    """In a user namespace of root's in which no further one may be made, as where an administrator forbids them."""
    home = Home(newcomer.home / "forbidden/h")
    home.path.mkdir(parents=True)
    (home.path / "config.json").write_text(json.dumps({"owner_uid": newcomer.uid}))
    for path in (home.path.parent, home.path, home.path / "config.json"):
        os.chown(path, newcomer.uid, newcomer.gid)
    done = _where_forbidden(newcomer, home, "ps")
    assert done.returncode == LACKS, done
    assert "next: let ordinary users make them: sudo sysctl -w user.max_user_namespaces=15000" in done.stderr
    assert newcomer.can(home, "ps").returncode == 0  # where they may be made, that is all it takes
    done = newcomer.can(home, "setup", "--remove", "--yes")
    assert done.returncode == 0, done.stderr


def test_a_machine_that_gives_sessions_no_proc_is_told(newcomer: Person) -> None:
    """As in a container: a part of /proc is covered."""
    home = Home(newcomer.home / "masked/h")
    assert newcomer.can(home, "--home", str(home.path), "setup").returncode == 0
    assert newcomer.can(home, "daemon", "stop").returncode == 0
    as_user = 'exec setpriv --reuid=$0 --regid=$1 --clear-groups "${@:2}"'
    argv = ["unshare", "--mount", "bash", "-c", f"mount -t tmpfs none /proc/fs; {as_user}", str(newcomer.uid)]
    argv += [str(newcomer.gid), *home.argv("shell", "main", "-d")]
    refused = subprocess.run(argv, env=newcomer.env(home), capture_output=True, text=True, check=False)
    assert refused.returncode == LACKS, refused
    assert "a part of /proc is covered" in refused.stderr
    assert "next: take away what is mounted below /proc; of a container: docker run --security-opt" in refused.stderr
    rows = json.loads(newcomer.can(home, "doctor", "--json").stdout)  # of the same daemon
    assert {row["capability"]: row["state"] for row in rows}["a proc of its own"] == "missing"
    for words in (
        ("daemon", "stop"),
        ("shell", "main", "-d"),
        ("stop", "main", "--discard"),
        ("setup", "--remove", "--yes"),
    ):
        done = newcomer.can(home, *words)  # by a daemon that sees the machine's own /proc
        assert done.returncode == 0, done


@contextlib.contextmanager
def _traced(pid: int) -> Iterator["subprocess.Popen[str]"]:
    """A strace of root's, which traces the process `pid`, for the `with` block."""
    argv = ["strace", "-qqq", "-o", "/dev/null", "-p", str(pid)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, text=True) as tracer:
        wait_until(lambda: task_state(pid).tracer == tracer.pid, "it to be traced")
        yield tracer
        tracer.terminate()


def _where_forbidden(newcomer: Person, home: Home, *args: str) -> "subprocess.CompletedProcess[str]":
    with subprocess.Popen(
        ["unshare", "--user", "sh", "-c", "echo; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        for which in ("uid_map", "gid_map"):
            Path(f"/proc/{holder.pid}/{which}").write_text("0 0 65536\n")
        enter = ["nsenter", f"--user=/proc/{holder.pid}/ns/user", "--setuid=0", "--setgid=0", "bash", "-c"]
        forbid = "echo 0 >/proc/sys/user/max_user_namespaces"
        words = [*enter, f'{forbid}; exec setpriv --reuid=$0 --regid=$1 --clear-groups "${{@:2}}"']
        argv = [*words, str(newcomer.uid), str(newcomer.gid), *home.argv(*args)]
        done = subprocess.run(argv, env=newcomer.env(home), capture_output=True, text=True, check=False)
        holder.kill()
    return done


def _killed(user: Caller) -> list[int]:
    """Kill supervisor, daemon and launcher, the launcher first, as it starts what is missing. Returns their pids: what
    had time to start another has to be killed again.
    """
    found = sorted(_processes_of(user).items(), key=lambda one: one[1] != "wp-launcher")
    for pid, _ in found:
        with contextlib.suppress(ProcessLookupError):  # it goes with another
            os.kill(pid, signal.SIGKILL)
    return [pid for pid, _ in found]


def _processes_of(user: Caller) -> dict[int, str]:
    """Supervisor, daemon and launcher, by pid, with their names."""
    assert user.person is not None
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if entry.name.isdecimal() and entry.stat().st_uid == user.person.uid:
                words = (entry / "cmdline").read_bytes()
                if b"waypoint/daemon/" in words or b"launch.launcher" in words:
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
    return found
