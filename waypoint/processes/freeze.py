"""Stopping a session at a moment at which CRIU can dump it.

A parent that has called vfork(2), as posix_spawn, Python's subprocess and dash do, sleeps uninterruptibly until its
child has executed a program. The cgroup freezer counts it as frozen, ptrace cannot stop it, and CRIU waits for it until
its timeout of ten seconds. Such a moment lasts a fraction of a millisecond, so the group is thawed and frozen again
until there is none.
"""

import contextlib
import time

from waypoint.linux import cgroups, procfs
from waypoint.model.errors import CannotCapture

WAIT_S = 1.0
PAUSE_S = 0.001  # for the child to get as far as its program
SETTLE_S = 0.0001


def freeze_for_dump(cgroup: str, *, wait_s: float = WAIT_S) -> None:
    """Freeze the cgroup2 group `cgroup` at a moment at which CRIU can stop every task in it. It may run in between.

    Raises CannotCapture if some process spends `wait_s` seconds in vfork; the group is thawed then. Raises OSError as
    `freeze` does.
    """
    deadline = time.monotonic() + wait_s
    while True:
        cgroups.freeze(cgroup)
        waiting = find_vfork_parent(cgroup)
        if waiting is None:
            return
        cgroups.thaw(cgroup)
        if time.monotonic() > deadline:
            raise CannotCapture(
                "stop the processes of",
                cgroup,
                f"pid {waiting} waits for a child that has not executed its program yet (vfork)",
                "end that process, or try again later",
            )
        time.sleep(PAUSE_S)


def find_vfork_parent(cgroup: str) -> int | None:
    """A task of the frozen group that waits in vfork: in a frozen group nothing else is in uninterruptible sleep."""
    deadline = time.monotonic() + WAIT_S
    while True:
        states = _states(cgroup)
        # A group that was thawed a moment ago counts as frozen again while its tasks are still on their way back.
        if "R" not in states.values() or time.monotonic() > deadline:
            return next((tid for tid, state in states.items() if state == "D"), None)
        time.sleep(SETTLE_S)


def _states(cgroup: str) -> dict[int, str]:
    states = {}
    for tid in map(int, cgroups.read(cgroup, "cgroup.threads").split()):
        with contextlib.suppress(ProcessLookupError):
            states[tid] = procfs.stat(tid).state
    return states
