"""Fixtures: a live session, and a command on a terminal."""

import os
from collections.abc import Callable, Iterator

import pexpect
import pytest

from tests.homes import Home
from tests.projects import project as project
from tests.waiting import PATIENCE_S

ROWS, COLS = 30, 100
Spawn = Callable[..., "pexpect.spawn[bytes]"]


@pytest.fixture
def branch(home: Home, request: pytest.FixtureRequest) -> Iterator[str]:
    """The branch of a live session for one test."""
    name = f"b{abs(hash(request.node.nodeid)) % 10**8}"
    home.must("shell", name, "-d")
    yield name
    home.cli("stop", name, "--discard")  # fails if the test has ended the session


@pytest.fixture
def on_terminal(home: Home) -> Iterator[Spawn]:
    """Return a function that runs a command of Waypoint on a new terminal of 30 rows and 100 columns."""
    spawned: list[pexpect.spawn[bytes]] = []

    def spawn(*args: str, env: dict[str, str] | None = None) -> "pexpect.spawn[bytes]":
        command, *words = home.argv(*args)
        terminal = pexpect.spawn(
            command, words, env={**home.env, **(env or {})}, timeout=PATIENCE_S, dimensions=(ROWS, COLS), encoding=None
        )
        terminal.delaybeforesend = None
        spawned.append(terminal)
        return terminal

    yield spawn
    for terminal in spawned:
        terminal.close(force=True)


def exit_status(terminal: "pexpect.spawn[bytes]") -> int | None:
    """Wait for the end of the command, and return its exit status; None if a signal ended it."""
    terminal.expect(pexpect.EOF)
    terminal.wait()
    return terminal.exitstatus


def is_cooked(terminal: "pexpect.spawn[bytes]") -> bool:
    import termios

    lflag = termios.tcgetattr(terminal.child_fd)[3]
    return bool(lflag & termios.ICANON and lflag & termios.ECHO)


def daemon_pid(home: Home) -> int:
    pid = home.must("daemon", "status", "--json").json()["pid"]
    assert isinstance(pid, int)
    os.kill(pid, 0)
    return pid
