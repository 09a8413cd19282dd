"""Processes by file descriptor. Unlike a pid, a pidfd never refers to another process after the first has ended.

Sources: pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2), waitid(2).
"""

import contextlib
import os
import select
import signal


def open(pid: int) -> int:
    """A pidfd of process `pid`, close-on-exec. Free of races only for the caller's own children and for itself.

    Raises ProcessLookupError if there is no such process.
    """
    return os.pidfd_open(pid)


def has_ended(fd: int) -> bool:
    """True if the process behind pidfd `fd` has ended, reaped or not. poll and epoll then report `fd` as readable."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def wait_ended(fd: int, timeout_s: float | None) -> bool:
    """Block until the process has ended, at most `timeout_s` seconds if that is not None. True if it has ended."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def send_signal(fd: int, number: int) -> None:
    """Send signal `number`. Raises ProcessLookupError if the process was reaped; for a zombie, nothing happens."""
    signal.pidfd_send_signal(fd, number)


def reap(fd: int) -> int | None:
    """Reap the child behind `fd` and return its status as `subprocess` does (-N: killed by signal N).

    None if the process has not ended, is not a child of the caller, or was reaped before.
    """
    with contextlib.suppress(ChildProcessError):
        result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
        if result is not None:
            return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    return None


def getfd(fd: int, number: int) -> int:
    """A duplicate, in this process, of file descriptor `number` of the process behind pidfd `fd`; close-on-exec.

    The caller must be allowed to trace that process (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS).
    """
    from waypoint.linux.calls import libc  # here, as ctypes is slow to load and the supervisor does not need it

    return libc.syscall("pidfd_getfd", fd, number, 0)


def take(pid: int, number: int) -> int:
    """A duplicate of file descriptor `number` of the process that has the id `pid` now; see `getfd`."""
    fd = os.pidfd_open(pid)
    try:
        return getfd(fd, number)
    finally:
        os.close(fd)
