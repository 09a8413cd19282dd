"""Whether the tasks of a group have run since a moment at which the group was frozen.

The kernel counts how often each task was given a processor (/proc/TID/schedstat, sched-stats.rst). A task that sleeps
in a system call is woken by the thaw, begins the same call again and goes back to sleep: the count grows by one. So if
no count has grown by more, and every task is in the same call with the same arguments, stack and code address, no task
has run in between, except for a task whose call has ended in that one run: what it has done then, it does in a copy of
the frozen state, too.
"""

import contextlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from waypoint.linux.calls import machine
from waypoint.linux.tasks import cgroups

MOST_TASKS = 64
"""Looking at more tasks, some 40 microseconds each, would lengthen a pause noticeably."""
_CALL_BYTES = 256
_FREEZES_S = 0.002
_RESTART = {"x86_64": b"219", "aarch64": b"128"}.get(machine.architecture(), b"")
"""restart_syscall(2), by which a call with a timeout goes on after an interruption: it has not ended in between."""


class Rest(NamedTuple):
    """A sleeping task. `runs`: how often it was given a processor. `call`: the number of its system call. `place`: the
    call's arguments, the addresses of its stack and code.
    """

    runs: int
    call: bytes
    place: bytes


def look_frozen(cgroup: str) -> dict[int, Rest] | None:
    """`look` at a group that is being frozen, as soon as it is frozen. None if that takes longer than _FREEZES_S."""
    with contextlib.suppress(OSError):
        cgroups.wait_frozen(cgroup, _FREEZES_S)
        return look(cgroup)
    return None


def look(cgroup: str) -> dict[int, Rest] | None:
    """The tasks of the group and of the groups below, by id. None if one is not in a system call, if there are too
    many, or if the kernel does not tell. Reads two files of /proc for each task.
    """
    found: dict[int, Rest] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        tids = cgroups.threads(cgroup)
        if not 0 < len(tids) <= MOST_TASKS:
            return None
        for tid in tids:
            call, _, place = _read(tid, "syscall").partition(b" ")
            runs = int(_read(tid, "schedstat").split()[2])
            if not (runs and place and call.isdigit()):
                return None
            found[tid] = Rest(runs, call, place)
        return found
    return None


def have_rested(then: Mapping[int, Rest], now: Mapping[int, Rest]) -> bool:
    """Whether no task has run since the frozen moment `then`, except for being thawed once."""
    return then.keys() == now.keys() and all(
        now[tid].runs - rest.runs in (0, 1) and now[tid].call in (rest.call, _RESTART) and now[tid].place == rest.place
        for tid, rest in then.items()
    )


def _read(tid: int, name: str) -> bytes:
    fd = os.open(f"/proc/{tid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _CALL_BYTES)
    finally:
        os.close(fd)
