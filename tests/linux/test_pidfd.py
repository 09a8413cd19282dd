"""Processes by pidfd."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S
from waypoint.linux.tasks import pidfd


@pytest.fixture
def child() -> Iterator[int]:
    """The pid of a child that waits at an empty pipe. It is reaped after the test."""
    read, write = os.pipe()
    pid = os.posix_spawn("/bin/cat", ["cat"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, read, 0)])
    yield pid
    os.close(read)
    os.close(write)


def pid_of(fd: int) -> int:
    """Return the pid of the process behind a pidfd; -1 if the process was reaped."""
    (pid,) = re.findall(r"^Pid:\s*(-?\d+)$", Path(f"/proc/self/fdinfo/{fd}").read_text(), re.MULTILINE)
    return int(pid)


def test_the_end_of_a_child_is_seen_and_reaped_once(child: int) -> None:
    fd = pidfd.open(child)
    assert not pidfd.has_ended(fd)
    assert pidfd.reap(fd) is None
    assert pid_of(fd) == child
    pidfd.send_signal(fd, signal.SIGKILL)
    assert pidfd.wait_ended(fd, DEADLINE_S)
    assert pidfd.has_ended(fd)
    assert pidfd.reap(fd) == -signal.SIGKILL
    assert pidfd.reap(fd) is None
    assert pid_of(fd) == -1
    with pytest.raises(ProcessLookupError):
        pidfd.send_signal(fd, signal.SIGTERM)
    os.close(fd)


def test_reaping_returns_the_exit_status() -> None:
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {})
    fd = pidfd.open(pid)
    assert pidfd.wait_ended(fd, DEADLINE_S)
    assert pidfd.reap(fd) == 7
    os.close(fd)


def test_opening_an_ended_process_raises_process_lookup_error() -> None:
    ended = subprocess.run(["/bin/sh", "-c", "echo $$"], capture_output=True, check=True)
    with pytest.raises(ProcessLookupError):
        pidfd.open(int(ended.stdout))


@pytest.mark.privileged
def test_a_descriptor_of_another_process_is_duplicated(child: int) -> None:
    fd = pidfd.open(child)
    ours = pidfd.getfd(fd, 0)
    assert os.path.samestat(os.fstat(ours), os.stat(f"/proc/{child}/fd/0"))
    assert os.get_inheritable(ours) is False
    pidfd.send_signal(fd, signal.SIGKILL)
    assert pidfd.wait_ended(fd, DEADLINE_S)
    pidfd.reap(fd)
    os.close(ours)
    os.close(fd)


def test_a_process_can_open_itself() -> None:
    fd = pidfd.open(os.getpid())
    assert pid_of(fd) == os.getpid()
    assert not pidfd.wait_ended(fd, 0)
    os.close(fd)
