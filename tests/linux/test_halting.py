"""A session's processes as a group where there are no cgroups: they are found, held, and ended."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until
from waypoint.linux.tasks import cgroups, halting, kin, procfs, ptrace
from waypoint.linux.tasks.states import task_state

pytestmark = pytest.mark.privileged

TREE = """
import os, sys, threading, time
if os.fork() == 0:
    threading.Thread(target=time.sleep, args=(1000,)).start()
while True:
    os.write(1, b".")
    time.sleep(0.001)
"""
"""A process, its child, and a second thread of that; the two write all the time."""


def tasks_of(path: str) -> list[int]:
    return [tid for pid in cgroups.members(path) for tid in procfs.threads(pid)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    path = str(tmp_path / kin.FOLDER / "group")
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE) as first:
        cgroups.create(path)
        kin.note_first(path, first.pid)
        wait_until(lambda: len(tasks_of(path)) == 3, "the child, and its thread")
        yield path, first
        for pid in procfs.family(first.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert first.stdout is not None
        first.stdout.close()
    cgroups.end(path)


def written(first: "subprocess.Popen[bytes]") -> bytes:
    """What the tree has written since the last call; nothing more comes if it stands still."""
    assert first.stdout is not None
    os.set_blocking(first.stdout.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        return os.read(first.stdout.fileno(), 1 << 16)
    return b""


def test_a_frozen_group_stands_still_and_goes_on(group: tuple[str, "subprocess.Popen[bytes]"]) -> None:
    path, first = group
    before = time.monotonic()
    assert before <= cgroups.freeze(path) <= time.monotonic()
    tasks = tasks_of(path)
    assert len(tasks) == 3
    assert {task_state(tid).state for tid in tasks} == {"t"}
    while written(first):
        pass
    assert written(first) == b""
    cgroups.thaw(path)
    wait_until(lambda: written(first) != b"", "it to go on")
    assert {task_state(tid).tracer for tid in tasks} == {0}


def test_a_frozen_group_can_be_ended(group: tuple[str, "subprocess.Popen[bytes]"]) -> None:
    path, first = group
    members = cgroups.members(path)
    cgroups.freeze(path)
    cgroups.end(path)
    assert first.wait() == -signal.SIGKILL
    assert not os.path.exists(path)
    assert cgroups.members(path) == []
    assert len(members) == 2


def test_a_group_that_was_frozen_before_stays_so(group: tuple[str, "subprocess.Popen[bytes]"]) -> None:
    path, first = group
    cgroups.freeze(path)
    with cgroups.frozen(path):
        pass
    assert task_state(first.pid).state == "t"
    cgroups.thaw(path)
    with cgroups.frozen(path):
        assert task_state(first.pid).state == "t"
    assert task_state(first.pid).state != "t"


TRACED = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from waypoint.linux.tasks import ptrace
child = os.fork()
if child:
    ptrace.seize(child)
while True:
    time.sleep(0.001)
"""
"""A process that traces its child, which runs."""


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A group of such a first process; the pid of its child."""
    path = str(tmp_path / kin.FOLDER / "traced")
    with subprocess.Popen([sys.executable, "-c", TRACED, str(Path(__file__).parents[2])]) as first:
        cgroups.create(path)
        kin.note_first(path, first.pid)
        wait_until(lambda: [task_state(pid).tracer for pid in cgroups.members(path)] == [0, first.pid], "a tracee")
        yield path, cgroups.members(path)[1]
        cgroups.end(path)


def test_who_is_traced_within_the_group_is_left_to_its_tracer(traced: tuple[str, int]) -> None:
    path, child = traced
    cgroups.freeze(path)
    first = kin.members(path)[0]
    assert (task_state(first).state, task_state(child).tracer) == ("t", first)
    cgroups.thaw(path)
    wait_until(lambda: task_state(first).tracer == 0, "it to be let go")


def test_a_tracer_outside_of_the_group_is_named_and_no_task_stays_held(
    group: tuple[str, "subprocess.Popen[bytes]"],
) -> None:
    path, first = group
    child = cgroups.members(path)[1]
    ptrace.seize(child)
    name = task_state(child).name
    with pytest.raises(PermissionError, match=rf"^.*{name} \(pid {child}\) is traced by .+ \(pid {os.getpid()}\)$"):
        cgroups.freeze(path)
    wait_until(lambda: task_state(first.pid).tracer == 0, "it to be let go")
    ptrace.interrupt(child)  # a tracer that does nothing more
    cgroups.end(path)
    assert first.wait() == -signal.SIGKILL


def test_a_group_is_frozen_however_many_files_are_open(group: tuple[str, "subprocess.Popen[bytes]"]) -> None:
    path, first = group
    with contextlib.ExitStack() as opened:
        for _ in range(1024):
            opened.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        cgroups.freeze(path)
        assert task_state(first.pid).state == "t"
        cgroups.thaw(path)


def test_no_task_stays_held_when_the_wait_for_it_is_broken_off(
    group: tuple[str, "subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, first = group

    def refuse() -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("waypoint.linux.tasks.halting.select.poll", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        cgroups.freeze(path)
    monkeypatch.undo()
    assert not halting.is_frozen(path)
    wait_until(lambda: task_state(first.pid).tracer == 0, "it to be let go")
