"""Signals to the processes of a session, and to no other process.

The id of a process or of a process group may meanwhile belong to another process of the machine: a session keeps the id
of an ended group as the foreground group of its terminal for as long as it likes. So a process is first opened as a
pidfd, and must then be in the list `members` of the session's processes. A process that is in a list which is younger
than the pidfd, and has not ended, is the process of the pidfd.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Collection

from waypoint.linux.tasks import pidfd, procfs

Members = Callable[[], Collection[int]]
"""Lists the pids of a session's processes (`cgroups.members`)."""

_PROCESS_GROUP = 4  # PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9: to the group whose leader is the process


def send(pid: int, number: int, members: Members) -> bool:
    """Send the signal to process `pid`, if it is one of `members`. Return whether the signal was sent."""
    return _send(pid, number, members, 0)


def send_to_group(group: int, number: int, members: Members) -> bool:
    """Send the signal to those `members` that are in the process group `group`. Return whether there was one.

    If the group's leader has ended, or on an old kernel, processes that the group forks meanwhile get only SIGKILL.
    """
    with contextlib.suppress(OSError):  # EINVAL: the kernel is older than 6.9
        if group > 1 and _send(group, number, members, _PROCESS_GROUP):
            return True
    sent: set[int] = set()
    while found := {pid for pid in members() if pid not in sent and _group(pid) == group}:
        reached = {pid for pid in found if send(pid, number, members)}
        if not reached:
            break
        sent |= reached
        if number != signal.SIGKILL:
            break
    return bool(sent)


def _send(pid: int, number: int, members: Members, flags: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        fd = pidfd.open(pid)
        try:
            if pid in members():
                signal.pidfd_send_signal(fd, number, None, flags)
                return True
        finally:
            os.close(fd)
    return False


def _group(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        return procfs.stat(pid).group
    return 0
