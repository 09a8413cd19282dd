"""Writes to pipes that freezing interrupts."""

import fcntl
import mmap
import os
import signal
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import wait_until
from waypoint.linux.tasks import cgroups, procfs
from waypoint.linux.tasks.clone import fork_into
from waypoint.processes.calls import finish_writes
from waypoint.processes.freeze import settled_states

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "cgroup2")]

FULL = 1 << 16
SIZE = 200_000
Pipe = tuple[int, int]


@pytest.fixture
def group() -> Iterator[str]:
    path = f"{cgroups.find_hierarchies().unified}/waypoint-calls-{os.getpid()}"
    cgroups.create(path)
    yield path
    cgroups.end(path)


def own_memory(size: int) -> bytes:
    return bytes(range(200)) * (size // 200)


def mapped_file(size: int) -> mmap.mmap:
    with tempfile.TemporaryFile() as file:
        file.write(own_memory(size))
        file.flush()
        return mmap.mmap(file.fileno(), 0)


def blocked_writer(group: str, pipe: Pipe, answer: Pipe, content: bytes | mmap.mmap) -> int:
    """A child in a write to a full pipe. It answers with the result of the write."""
    pid = fork_into(group)
    if pid == 0:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        os.write(answer[1], str(os.write(pipe[1], content)).encode())
        os._exit(0)
    wait_until(lambda: unread(pipe) == FULL and procfs.stat(pid).state == "S", "the pipe is full", brief=True)
    return pid


def unread(pipe: Pipe) -> int:
    return int.from_bytes(fcntl.ioctl(pipe[0], termios.FIONREAD, bytes(4)), sys.byteorder)


def nothing(_pid: int, _pipe: Pipe) -> None:
    pass


def signalled(pid: int, _pipe: Pipe) -> None:
    os.kill(pid, signal.SIGUSR1)


def unblocked(_pid: int, pipe: Pipe) -> None:
    os.set_blocking(pipe[1], False)


@pytest.mark.parametrize(
    ("make", "size", "happens", "written"),
    [
        pytest.param(own_memory, SIZE, nothing, SIZE, id="finished"),
        pytest.param(own_memory, SIZE, signalled, FULL, id="signal"),
        pytest.param(own_memory, SIZE, unblocked, FULL, id="does not block"),
        pytest.param(own_memory, 10 * SIZE, nothing, FULL, id="more than a pipe can hold"),
        pytest.param(mapped_file, SIZE, nothing, FULL, id="memory of a file"),
    ],
)
def test_only_a_write_that_the_freeze_alone_interrupts_is_finished(
    group: str,
    make: Callable[[int], bytes | mmap.mmap],
    size: int,
    happens: Callable[[int, Pipe], None],
    written: int,
) -> None:
    pipe, answer = os.pipe(), os.pipe()
    pid = blocked_writer(group, pipe, answer, make(size))
    cgroups.freeze(group)
    happens(pid, pipe)
    for _twice in range(2):
        finish_writes([pid])
        assert settled_states(group)[pid].state == "S"
        assert unread(pipe) == written
    assert unread(answer) == 0
    cgroups.thaw(group)
    assert int(os.read(answer[0], 20)) == written
    os.waitpid(pid, 0)
    assert os.read(pipe[0], size) == own_memory(size)[:written]
    for fd in (*pipe, *answer):
        os.close(fd)
