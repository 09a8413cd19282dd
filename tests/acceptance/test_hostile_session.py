"""Attacks by a session's root on the daemon that serves all sessions: other sessions notice nothing."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import facts, inside, put, session
from tests.homes import Home, open_home
from tests.session.ledger import group_of
from tests.waiting import DEADLINE_S, PATIENCE_S, wait_until
from waypoint.linux.tasks import cgroups, procfs
from waypoint.service import session_hooks

pytestmark = pytest.mark.privileged


STOPPER = """
import os, signal
own, known = os.getpid(), {*os.listdir('/proc')}
os.close(os.open('/srv/ready', os.O_CREAT))
while True:
    for name in {*os.listdir('/proc')} - known:
        try:
            os.kill(int(name), signal.SIGSTOP)
        except ProcessLookupError:
            continue
        os.close(os.open('/srv/stopped', os.O_CREAT))
"""
"""Stops each new process of its session."""


@contextlib.contextmanager
def stopping_session(home: Home) -> Iterator[tuple[str, Path]]:
    """Start a session that has a hook and stops each new process. Yield its branch and its /srv."""
    with session(home, "root") as branch:
        hooks = "/etc/waypoint/hooks/pre-checkpoint.d"
        inside(home, branch, f"mkdir -p {hooks}; printf '#!/bin/sh' >{hooks}/hook; chmod 755 {hooks}/hook")
        srv = Path(f"/proc/{facts(home, branch)['pid']}/root/srv")
        put(home, branch, "/srv/stopper.py", STOPPER)
        inside(home, branch, "python3 /srv/stopper.py & disown")
        wait_until((srv / "ready").exists, "the session stops new processes")
        yield branch, srv


def test_a_session_that_stops_its_hooks_is_stopped(home: Home) -> None:
    with stopping_session(home) as (branch, srv), home.background("checkpoint", "stuck", "-b", branch):
        wait_until((srv / "stopped").exists, "the session has stopped its hook")
        home.must("stop", branch, "--discard")
        assert home.cli("show", "stuck").code == 2


@pytest.mark.soak(part="walls")
def test_a_session_that_stops_its_hooks_delays_a_checkpoint_by_their_time_and_no_other_session(home: Home) -> None:
    with stopping_session(home) as (hostile, srv), session(home, "root") as other:
        with home.background("checkpoint", "late", "-b", hostile) as checkpoint:
            wait_until((srv / "stopped").exists, "the session has stopped its hook")
            assert longest_answer_s(home, 5) < DEADLINE_S
            assert home.must("run", "-b", other, "--", "echo", "runs").stdout == "runs\n"
            assert checkpoint.wait(2 * session_hooks.HOOKS_S) == 0
            assert checkpoint.stderr is not None
            assert b"it did not start in time: a process of the session may have stopped it" in checkpoint.stderr.read()
        names = [procfs.stat(pid).name for pid in cgroups.members(f"{group_of(home)}/{facts(home, hostile)['id']}")]
        assert sorted(names) == ["bash", "python3", "sh"], "the stopped hook has ended"
        begun = time.monotonic()
        home.must("stop", "--files", hostile)
        assert time.monotonic() - begun < 2.0
        home.must("rm", "late")


TERMINAL = """
import ctypes, fcntl, os, threading, time
call = ctypes.CDLL(None).syscall
master = call(438, call(434, 1, 0), 3, 0)  # pidfd_getfd, pidfd_open
slave = os.open('/dev/pts/0', os.O_RDWR | os.O_NOCTTY)
def wait_for_it():
    while True:
        fcntl.fcntl(master, fcntl.F_SETFL, fcntl.fcntl(master, fcntl.F_GETFL) & ~os.O_NONBLOCK)
def steal():
    while True:
        try:
            os.read(master, 65536)
        except OSError:
            time.sleep(0.001)
for work in (steal, steal, wait_for_it):
    threading.Thread(target=work, daemon=True).start()
print('begun', flush=True)
end = time.time() + 12
while time.time() < end:
    os.write(slave, b'x' * 10)
    time.sleep(0.0005)
"""


def longest_answer_s(home: Home, for_s: float) -> float:
    """Run `waypoint ps` again and again for this time; return the longest duration."""
    longest, end = 0.0, time.monotonic() + for_s
    while time.monotonic() < end:
        begun = time.monotonic()
        home.must("ps", timeout_s=PATIENCE_S)
        longest = max(longest, time.monotonic() - begun)
    return longest


@pytest.mark.soak(part="timing")
def test_a_terminal_that_blocks_delays_no_other_session(home: Home) -> None:
    with (
        session(home, "root") as hostile,
        session(home, "root") as other,
        home.background("run", "-b", hostile, "--", "python3", "-c", TERMINAL) as program,
    ):
        assert program.stdout is not None
        assert program.stdout.readline() == b"begun\n"
        assert longest_answer_s(home, 10) < DEADLINE_S
        assert inside(home, other, "echo $((40 + 2))") == "42\n"


def groups_of(home: Home) -> dict[Path, tuple[int, int]]:
    """Return the mode and owner of each cgroup of the home."""
    found = [
        group for root in Path("/sys/fs/cgroup").rglob(f"waypoint/{home.id}") for group in (root, *root.rglob("*"))
    ]
    return {group: (group.stat().st_mode, group.stat().st_uid) for group in found}


@pytest.mark.soak(part="floods")
def test_a_restore_changes_no_cgroup_that_pid_1_has_mounted_over_the_session_files() -> None:
    """The session replaces the script of its pid 1. The home has no seccomp filter, which would forbid that mount."""
    with open_home("unfiltered", seccomp=False) as home, session(home, "root") as branch:
        inside(home, branch, "mkdir -p /srv/sub1/deep; chmod 777 /srv")
        home.must("checkpoint", "wanted", "-b", branch)
        inside(home, branch, "rm -rf /srv/*; chmod 755 /srv")
        script = '[ -z "$N" ] && { export N=1; exec unshare -UrmC sh /d.sh "$@"; }'
        mounting = 'mount -t cgroup2 c /srv; exec sh /.waypoint/first.sh "$@"'
        inside(home, branch, f"echo '{mounting}' > /d.sh; sed -i '1a {script}' /.waypoint/first.sh")
        home.must("stop", "--files", branch)
        home.cli("shell", branch, "-d", "--user", "root")
        before = groups_of(home)
        refused = home.cli("restore", "wanted", "-b", branch, "--only", "files", "--lose-processes")
        assert (refused.code, "has gone into a user namespace of its own" in refused.stderr) == (125, True), refused
        assert groups_of(home) == before
        home.must("rm", "wanted")


SEND = """
import array, itertools, resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
content, held = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 250))], []
try:
    for count in itertools.count(0, 250):
        if count % 1000 == 0:
            held.append(socket.socketpair())
        if count > 20000:
            break
        held[-1][0].sendmsg([b'x'], content)
except OSError as error:
    assert 'Too many references' in str(error)
print('begun', flush=True)
time.sleep(1000)
"""


@pytest.mark.soak(part="floods")
@pytest.mark.requires("criu")
def test_descriptors_in_flight_make_a_checkpoint_fail_and_nothing_else(home: Home) -> None:
    """The kernel counts the descriptors in flight of all sessions of a home together."""
    with session(home, "root") as other:
        home.must("checkpoint", "before", "-b", other)
        with (
            session(home, "root") as hostile,
            home.background("run", "-b", hostile, "--", "python3", "-c", SEND) as program,
        ):
            assert program.stdout is not None
            assert program.stdout.readline() == b"begun\n"
            assert home.must("run", "-b", other, "--", "echo", "42").stdout == "42\n"
            home.must("fork", "before", "copy")
            home.must("shell", "new", "-d", "--user", "root")
            failed = home.cli("checkpoint", "after", "-b", other)
            assert failed.code == 125
            assert "a limit that sessions share is used up" in failed.stderr
            step = "stop the session that uses so many of them, or wait until it has ended, and try again"
            assert f"\n  next: {step}\n" in failed.stderr
        home.must("stop", "copy", "new", "--discard")
        assert home.must("checkpoint", "after", "-b", other, "--json").json()["tier"] == "live"


FORGED_STATE = r"""
import time
lines = ''.join(f'declare -- a{number:06d}=1\n' for number in range(700_000))
for number in ('1000001', '1000002'):
    state = ['', 's', number, 'bash', '0', 'd', '', '', '/', 'm', '', '', '0022', 'v', '', '', lines]
    with open(f'/run/waypoint/last.{int(number) % 2}', 'w') as file:
        file.write('\0'.join([*state, 'e', number, '', '', '']))
print('begun', flush=True)
time.sleep(100)
"""


@pytest.mark.soak(part="timing")
def test_a_forged_shell_state_delays_nobody(home: Home) -> None:
    with session(home, "root") as hostile:
        with home.background(
            "exec", "-b", hostile, "--", f"python3 -c '{FORGED_STATE.replace(chr(39), chr(34))}'"
        ) as it:
            assert it.stdout is not None
            assert it.stdout.readline() == b"begun\n"
            home.must("checkpoint", "forged", "-b", hostile, "--tier", "files")
        with home.background("fork", "forged", "forged-1", "forged-2") as forks:
            assert longest_answer_s(home, 5) < 2
            assert forks.wait(PATIENCE_S) == 0
            assert forks.stderr is not None
            said = forks.stderr.read().decode()
        assert "the shell's state was not restored: the state has more than 20000 variables" in said
        home.must("stop", "forged-1", "forged-2", "--discard")
        home.must("rm", "forged")


@pytest.mark.soak(part="floods")
def test_only_root_may_checkpoint_below_the_disk_floor() -> None:
    """No limit of a session covers the memory images of its checkpoints, and named checkpoints are never removed."""
    with open_home("floor") as home:
        home.must("shell", "main", "-d", "--user", "root")
        home.must("daemon", "stop")
        config = json.loads((home.path / "config.json").read_text())
        config["pool"]["floor_bytes"] = 1 << 60
        (home.path / "config.json").write_text(json.dumps(config))
        done = home.cli("exec", "-b", "main", "--", "waypoint checkpoint within")
        assert done.code == 125, done
        assert "No space left on device: with " in done.stdout
        assert "the disk of the home would have less than" in done.stdout
        assert home.must("checkpoint", "by-root", "-b", "main", "--json").json()["tier"] == "live"
