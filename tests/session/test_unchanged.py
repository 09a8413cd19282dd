"""A checkpoint of a session in which nothing has run since its last capture reuses that capture."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.homes import Home
from tests.waiting import wait_until
from waypoint.client import Client
from waypoint.client.sdk import Session
from waypoint.linux.tasks import procfs
from waypoint.model.ids import random_hex

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

# Waits in one and the same system call before and after it has done something.
PROGRAM = """
import itertools, os, signal
memory = bytearray(1)
acts = itertools.cycle([
    lambda: memory.__setitem__(0, memory[0] + 1),
    lambda: open("/tmp/written", "a").write("x"),
    lambda: os.write(1, b"printed"),
])
signal.signal(signal.SIGUSR1, lambda *_: next(acts)())
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def session(home: Home) -> Iterator[Session]:
    made = Client(home.path).start("still")
    made.run("sh", "-c", "cat >/tmp/acts.py", stdin=PROGRAM.encode())
    made.exec("python3 /tmp/acts.py & sleep 100000 &")
    yield made
    made.stop(discard=True)


def name() -> str:
    return f"c-{random_hex(6)}"


def settle(session: Session) -> str:
    """Make checkpoints until one reuses the capture of the one before: the machine may be busy when a session is
    thawed, so that a program gets the processor twice. Returns the capture.
    """
    wait_until(lambda: session.checkpoint(name()).reused, "an unchanged session is not captured")
    return session.checkpoint(name()).capture


def pid_of_program() -> int:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            found += [int(name)] if procfs.command_line(int(name))[1:] == ["/tmp/acts.py"] else []
    assert len(found) == 1
    return found[0]


def test_an_unchanged_session_is_not_captured_again(client: Client, session: Session) -> None:
    capture = settle(session)
    before = len(client.history.log(all=True))
    again = session.checkpoint(name())
    assert (again.reused, again.capture, again.paused_ms) == (True, capture, 0.0)
    assert len(client.history.log(all=True)) == before


def test_each_act_of_a_program_is_captured(session: Session) -> None:
    settle(session)
    pid = pid_of_program()
    for what in ("a byte of memory", "a file", "output"):
        capture = settle(session)
        ran = procfs.stat(pid), runs(pid)
        os.kill(pid, signal.SIGUSR1)
        wait_until(lambda ran=ran: runs(pid) > ran[1] and procfs.stat(pid).state == "S", "the program has acted")
        taken = session.checkpoint(name())
        assert (taken.reused, taken.capture != capture) == (False, True), what


def runs(pid: int) -> int:
    return int(procfs.raw(pid, "schedstat", 100).split()[2])


def test_a_checkpoint_that_asks_for_more_is_captured(session: Session) -> None:
    settle(session)
    assert not session.checkpoint(name(), message="a new message").reused
    settle(session)
    assert not session.checkpoint(name(), anew=True).reused
    settle(session)
    assert session.checkpoint(name(), tier="live").reused
    assert not session.checkpoint(name(), tier="files").reused


def test_files_that_were_restored_are_captured(home: Home, session: Session) -> None:
    session.exec("echo first >/tmp/which")
    first = session.checkpoint(name())
    session.exec("echo second >/tmp/which")
    settle(session)
    session.restore(first.name, only="files")
    taken = session.checkpoint(name())
    assert not taken.reused
    assert home.must("cat", f"{taken.name}:/tmp/which").stdout == "first\n"
