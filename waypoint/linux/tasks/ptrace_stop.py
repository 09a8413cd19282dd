"""Keeping the tasks of a frozen group stopped by ptrace instead, because a frozen task cannot run a system call."""

import contextlib
from collections.abc import Collection, Iterator

from waypoint.linux.tasks import cgroups, ptrace


class NotTraceable(Exception):
    """The task `tid` cannot be traced, or its filter of system calls, which might kill it, cannot be suspended."""

    def __init__(self, tid: int) -> None:
        super().__init__(f"task {tid} cannot be traced")
        self.tid = tid


@contextlib.contextmanager
def stopped(cgroup: str, tids: Collection[int]) -> Iterator[None]:
    """Keep the tasks `tids` of the frozen group stopped by ptrace; these should be all its tasks. The group is frozen
    again afterwards. Raises NotTraceable, OSError.
    """
    held: list[int] = []
    try:
        for tid in tids:
            try:
                ptrace.seize(tid, with_threads=True)
            except PermissionError as error:
                raise NotTraceable(tid) from error
            held.append(tid)
            ptrace.interrupt(tid)
            ptrace.wait(tid)
        cgroups.thaw(cgroup)
        yield
    finally:
        cgroups.hold_frozen(cgroup)  # before the tasks are released, so that none runs
        for tid in held:
            with contextlib.suppress(OSError):  # killed meanwhile
                ptrace.detach(tid)
        cgroups.freeze(cgroup)
