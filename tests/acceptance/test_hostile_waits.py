"""Attacks with numbers of processes that have ended, and with files that hold back whoever opens them."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.sessions import facts, inside, put, session
from tests.homes import MIB, Home, open_home
from tests.session.ledger import group_of
from tests.session.stale_group import LEAVE, process_with_number
from tests.waiting import DEADLINE_S, PATIENCE_S, wait_until
from waypoint.client import Client
from waypoint.linux.tasks import cgroups, procfs
from waypoint.session import session_facts

pytestmark = [pytest.mark.privileged, pytest.mark.soak(part="walls")]

LEASES = """
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
held = [os.open(f'/dev/shm/{number}', os.O_RDWR | os.O_CREAT) for number in range(200)]
for fd in held:
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.close(os.open('/srv/ready', os.O_CREAT))
while True:
    signal.pause()
"""
MAPPINGS = """
import ctypes, mmap, os, signal
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
place = libc.mmap(None, ctypes.c_size_t(60000 * 4096), mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
for number in range(30000):  # each protected page makes a mapping of its own
    libc.mprotect(ctypes.c_void_p(place + number * 8192), 4096, mmap.PROT_READ | mmap.PROT_WRITE)
os.close(os.open(f'/srv/ready{os.getpid()}', os.O_CREAT))
signal.pause()
"""
LATE = """
import ctypes, os, time
libc = ctypes.CDLL(None)
while True:
    with open('/srv/go') as told:
        time.sleep(float(told.read()))
    rules = libc.syscall(444, (1).to_bytes(8, 'little'), 8, 0)  # landlock_create_ruleset
    with open('/srv/go') as told:
        os.close(rules)
"""
"""Opens a file that CRIU refuses, some time after the session's hook has run."""
DELAYS_S = (0.03, 0.04, 0.05, 0.02, 0.06)
STOPPED_S = 2.0
MANY = 400
FORKS = f"import os\nfor _ in range({MANY - 1}):\n    if not os.fork():\n        break\n"
LISTED_S = session_facts.PATIENCE_S + 2.0
DEEP = """
import os
os.chdir("/srv")
for _ in range(3000):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
"""
WATCH = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None)
watches = libc.inotify_init()
for path in ("/dev/zero", "/dev/.empty", "/sys/class"):
    assert libc.inotify_add_watch(watches, path.encode(), 0xFFF) > 0
os.close(os.open("/srv/watching", os.O_CREAT))
while select.select([watches], [], [], 0.1)[0] or not os.path.exists("/srv/enough"):
    if select.select([watches], [], [], 0)[0]:
        os.read(watches, 4096)
        os.close(os.open("/srv/seen", os.O_CREAT))
"""
USE = "head -c 1 /dev/zero; ls /dev/.empty /sys/class"


def root_of(home: Home, branch: str) -> Path:
    return Path(f"/proc/{facts(home, branch)['pid']}/root")


def members_of(home: Home, branch: str) -> list[int]:
    return cgroups.members(f"{group_of(home)}/{facts(home, branch)['id']}")


def test_a_timeout_ends_no_process_that_has_got_the_number_of_an_ended_foreground_group(home: Home) -> None:
    with session(home, "root") as branch:
        put(home, branch, "/srv/leave.py", LEAVE)
        words = ("exec", "-b", branch, "--timeout", "5", "--", "python3 /srv/leave.py </dev/tty")
        with home.background(*words) as command:
            assert command.stdout is not None
            assert command.stdout.readline() == b"left\n"
            (number,) = {procfs.stat(pid).foreground for pid in members_of(home, branch)} - {-1}
            with process_with_number(number):
                assert command.wait(PATIENCE_S) == 124


@pytest.fixture(scope="module")
def unfiltered() -> Iterator[Home]:
    with open_home("leases", seccomp=False) as home:
        yield home


@contextlib.contextmanager
def leasing(home: Home) -> Iterator[str]:
    """Start a session whose process has leases on 200 files in its /dev/shm, and yield its branch."""
    with session(home, "root") as branch:
        root = root_of(home, branch)
        put(home, branch, "/srv/leases.py", LEASES)
        inside(home, branch, "python3 /srv/leases.py & disown")
        wait_until((root / "srv/ready").exists, "the session has its leases")
        with pytest.raises(BlockingIOError):
            os.open(root / "dev/shm/7", os.O_RDONLY | os.O_NONBLOCK)
        yield branch


def test_a_checkpoint_does_not_wait_for_leases_and_the_session_continues(unfiltered: Home) -> None:
    """Without a filter of system calls the session may take leases."""
    with leasing(unfiltered) as branch:
        begun = time.monotonic()
        refused = unfiltered.cli("checkpoint", "leased", "-b", branch, "--json")
        assert json.loads(refused.stdout)["error"]["code"] == "capture-too-slow"
        assert time.monotonic() - begun < DEADLINE_S / 2
        assert inside(unfiltered, branch, "echo $((40 + 2))") == "42\n"


def test_a_session_with_leases_is_stopped_during_a_checkpoint(unfiltered: Home) -> None:
    with leasing(unfiltered) as branch, unfiltered.background("checkpoint", "leased", "-b", branch):
        frozen = group_of(unfiltered) / facts(unfiltered, branch)["id"] / "cgroup.events"
        wait_until(lambda: "frozen 1" in frozen.read_text(), "the session is frozen", brief=True)
        begun = time.monotonic()
        unfiltered.must("stop", branch, "--discard")
        assert time.monotonic() - begun < STOPPED_S


def test_a_slow_refusal_of_criu_is_not_repeated_with_a_log_of_everything(home: Home) -> None:
    """The session opens a file that CRIU refuses when Waypoint has looked at the open files, and before CRIU does."""
    with session(home, "root") as branch:
        live, hooks = Client(home.path).session(branch), "/etc/waypoint/hooks/pre-checkpoint.d"
        put(home, branch, "/srv/mappings.py", MAPPINGS)
        put(home, branch, "/srv/late.py", LATE)
        inside(home, branch, f"mkdir -p {hooks}; echo 'cat /srv/delay >/srv/go' >{hooks}/hook; chmod 755 {hooks}/hook")
        inside(home, branch, f"sed -i '1i #!/bin/sh' {hooks}/hook; mkfifo /srv/go")
        for _ in range(4):
            inside(home, branch, "python3 /srv/mappings.py & until [ -e /srv/ready$! ]; do sleep 0.01; done; disown")
        inside(home, branch, "python3 /srv/late.py & disown")  # after the others, in the order in which CRIU looks
        for number, delay in enumerate(DELAYS_S):
            put(home, branch, "/srv/delay", str(delay))
            taken = live.checkpoint(f"slow-{number}")
            inside(home, branch, "echo >/srv/go")
            log = home.path / f"criu-logs/{taken.capture}-dump.log"
            if log.exists():
                break
        assert log.exists(), "CRIU itself has refused the file at no delay: the test proves nothing"
        assert log.stat().st_size <= MIB
        assert taken.paused_ms > 1000
        assert f"capture of {branch}, first try" not in (home.path / "daemon.log").read_text()


def test_processes_with_many_mappings_do_not_delay_the_list_of_sessions(home: Home) -> None:
    with session(home, "root") as hostile, session(home, "root") as other:
        put(home, hostile, "/srv/mappings.py", MAPPINGS.replace("os.close", FORKS + "os.close"))
        inside(home, hostile, "python3 /srv/mappings.py & disown")
        ready = root_of(home, hostile) / "srv"
        wait_until(lambda: len([*ready.glob("ready*")]) == MANY, "all processes have their mappings")
        begun = time.monotonic()
        found = {one["branch"]: one for one in home.must("ps", "--json").json()}
        assert time.monotonic() - begun < LISTED_S
        assert found[hostile]["memory_bytes"] is None
        assert [one["code"] for one in found[hostile]["degraded"]] == ["not-measured"]
        assert found[other]["memory_bytes"] > 0
        begun = time.monotonic()
        for pid in members_of(home, hostile):
            procfs.resident(pid)
        assert time.monotonic() - begun > session_facts.PATIENCE_S, "the control: measuring takes long"


def test_very_deep_folders_do_not_break_the_measurement_of_disk_usage(home: Home) -> None:
    with session(home, "root") as branch:
        put(home, branch, "/srv/deep.py", DEEP)
        inside(home, branch, "python3 /srv/deep.py")
        (found,) = (one for one in home.must("du", "--json").json()["holders"] if one["names"] == [branch])
        assert (found["files_bytes"] is not None, found["degraded"]) == (True, [])


def test_a_session_does_not_see_when_another_uses_its_devices(home: Home) -> None:
    with session(home, "root") as watching, session(home, "root") as other:
        put(home, watching, "/srv/watch.py", WATCH)
        inside(home, watching, "python3 /srv/watch.py & disown; until [ -e /srv/watching ]; do sleep 0.01; done")
        seen = root_of(home, watching) / "srv/seen"
        for _ in range(20):
            inside(home, other, USE)
        assert not seen.exists()
        inside(home, watching, USE)
        wait_until(seen.exists, "the session sees its own uses")
        inside(home, watching, "touch /srv/enough")
