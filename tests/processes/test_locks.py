"""Locks that a restored process is to take again: what becomes of those of a process that cannot be made to."""

import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.linux.conftest import group as group
from waypoint.linux.tasks import cgroups, procfs, ptrace
from waypoint.processes.locks import Lock, take_again

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "cgroup2")]


class Owner:
    """A process in the group `group` that has the file `path` open and mapped. It has lost its lock on it."""

    def __init__(self, path: Path, group: str) -> None:
        path.write_bytes(b"0")
        self.path = path
        with open(path, "r+b") as file:
            content = mmap.mmap(file.fileno(), 1)
            self.pid = os.fork()
            if self.pid == 0:
                while True:
                    signal.pause()
            content.close()
            self.lock = Lock(self.pid, file.fileno(), 1, 0, 0)
        cgroups.write(group, "cgroup.procs", str(self.pid))

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def owners(tmp_path: Path, group: str) -> Iterator[list[Owner]]:
    found = [Owner(tmp_path / name, group) for name in ("one", "other")]
    yield found
    for owner in found:
        owner.end()


def has_lock(owner: Owner) -> bool:
    where = f":{owner.path.stat().st_ino} "
    return any(where in line and f" {owner.pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_a_process_that_another_program_traces_goes_on_without_its_locks_and_the_others_take_theirs(
    owners: list[Owner], group: str
) -> None:
    one = owners[0]
    told, tell = os.pipe()
    tracer = os.fork()
    if tracer == 0:
        ptrace.seize(one.pid)
        os.write(tell, b"1")
        while True:
            signal.pause()
    assert os.read(told, 1)
    cgroups.freeze(group)
    try:
        lost = take_again([owner.lock for owner in owners], group)
        assert lost == [f"{one.path} of {procfs.stat(one.pid).name} (pid {one.pid})"]
        assert [has_lock(owner) for owner in owners] == [False, True]
    finally:
        os.kill(tracer, signal.SIGKILL)
        os.waitpid(tracer, 0)
        os.close(told)
        os.close(tell)
