"""Keeping restored processes stopped by ptrace, so that they can be made to call the kernel before they run."""

import contextlib
from collections.abc import Iterator

from waypoint.linux.tasks import cgroups, procfs, ptrace


@contextlib.contextmanager
def stopped(cgroup: str, *, then_frozen: bool = False) -> Iterator[list[int]]:
    """Yield the pids of the group, whose tasks ptrace keeps stopped in the `with` block; afterwards they run, or freeze
    before they run (`then_frozen`).

    The group must be frozen or freezing, and no process of it may have run since the restore. The end is the same after
    an OSError.
    """
    pids = cgroups.members(cgroup)
    held: list[int] = []
    try:
        for pid in pids:
            for tid in procfs.threads(pid):
                ptrace.seize(tid, unfiltered=True)
                held.append(tid)
                ptrace.interrupt(tid)
                ptrace.wait(tid)
        cgroups.thaw(cgroup)  # the tasks still do not run, because ptrace has stopped them
        yield pids
    finally:
        if then_frozen:
            cgroups.hold_frozen(cgroup)
        for tid in held:
            with contextlib.suppress(OSError):  # killed meanwhile
                ptrace.detach(tid)
        if not then_frozen:
            cgroups.thaw(cgroup)
