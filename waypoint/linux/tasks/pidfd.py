"""Access to processes by pidfd. Unlike a pid, a pidfd never refers to another process after its process has ended.

Sources: pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2), waitid(2).
"""

import contextlib
import os
import select
import signal


def open(pid: int) -> int:
    """Return a pidfd of process `pid`, close-on-exec. Raises ProcessLookupError if there is no such process.

    Only for the caller itself and its own children it is certain that the pid was not reused.
    """
    return os.pidfd_open(pid)


def has_ended(fd: int) -> bool:
    """Return True if the process has ended, reaped or not. poll and epoll then report `fd` as readable."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def wait_ended(fd: int, timeout_s: float | None = None) -> bool:
    """Block until the process has ended, at most `timeout_s` seconds. Return True if the process has ended."""
    poll = select.poll()  # select(2) refuses descriptors from 1024 on
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def send_signal(fd: int, number: int) -> None:
    """Send signal `number`. Raises ProcessLookupError if the process was reaped. Does nothing for a zombie."""
    signal.pidfd_send_signal(fd, number)


def reap(fd: int) -> int | None:
    """Reap the child and return its status as `subprocess` does (-N: killed by signal N).

    Return None if the process has not ended, is not a child of the caller, or was reaped before.
    """
    with contextlib.suppress(ChildProcessError):
        result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
        if result is not None:
            return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    return None


def getfd(fd: int, number: int) -> int:
    """Duplicate file descriptor `number` of the process with pidfd `fd` into this process, close-on-exec.

    The caller must be allowed to trace that process (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS).
    """
    from waypoint.linux.calls import libc  # here, as ctypes is slow to load and the supervisor does not need it

    return libc.syscall("pidfd_getfd", fd, number, 0)


def take(pid: int, number: int) -> int:
    """Duplicate file descriptor `number` of the process that has the id `pid` now; see `getfd`."""
    fd = os.pidfd_open(pid)
    try:
        return getfd(fd, number)
    finally:
        os.close(fd)
