"""Keeping calls of poll(2) that wait for ever from ending in a capture.

The freezing breaks such a call off, and the kernel would go on with it by what it has noted. CRIU has each task run
calls of its own, by which the note is lost, so it lets the call end with EINTR, in the original and in copies. Most
programs ask again; util-linux's script(1) ends. A call that waits for ever is the same when it is begun anew, so that
is what the registers of such a task are set to before CRIU comes. Not those with a timeout: nobody knows how much is
left; nor where a signal waits, whose handler may want the call to end. One that comes in the pause finds a new call.
"""

import contextlib
from collections.abc import Iterable

from waypoint.linux.calls import machine
from waypoint.linux.tasks import cgroups, procfs, ptrace
from waypoint.linux.tasks.states import task_state
from waypoint.processes.freeze import settled_states

MOST = 64  # of a session: each takes some 0.1 ms of the pause


def find(cgroup: str) -> list[int]:
    """The tasks of a group that runs which are in such a call now; at most MOST. Costs one read for each task."""
    if machine.architecture() != "x86_64":
        return []
    tids = (int(word) for word in cgroups.read(cgroup, "cgroup.threads").split())
    return [tid for tid, _ in zip(filter(_waits, tids), range(MOST), strict=False)]


def begin_anew(cgroup: str, tids: Iterable[int]) -> None:
    """Have those of the tasks that still are in such a call begin it anew when they go on. The group must be frozen,
    and all its tasks stand still again afterwards. A task that has ended, or is traced, is passed over.
    """
    if [tid for tid in tids if _begin_anew(tid)]:
        settled_states(cgroup)


def _waits(tid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        call = procfs.system_call(tid)
        return call is not None and call.name == "poll" and bool(call.third >> 31 & 1)
    return False


def _begin_anew(tid: int) -> bool:
    with contextlib.suppress(OSError):
        state = task_state(tid)
        if state.waiting & ~state.blocked:
            return False
        ptrace.seize(tid)
        ptrace.interrupt(tid)
        if ptrace.wait(tid) is not None:
            try:
                ptrace.begin_poll_anew(tid)
            finally:
                ptrace.detach(tid)
            return True
    return False
