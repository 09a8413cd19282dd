"""Processes by file descriptor: never a stranger who got the pid of one that has ended.

Sources: pidfd_open(2), pidfd_send_signal(2), pidfd_getfd(2), waitid(2).
"""

import contextlib
import os
import select
import signal


def open(pid: int) -> int:
    """A descriptor of process `pid`, close-on-exec. Race-free only for own children and for oneself.

    Raises ProcessLookupError if there is none.
    """
    return os.pidfd_open(pid)


def has_ended(fd: int) -> bool:
    """True once the process has ended, be it reaped or not. The fd is then readable for poll and epoll too."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def wait_ended(fd: int, timeout_s: float) -> bool:
    """Block until the process has ended, at most `timeout_s`; True if it has."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def send_signal(fd: int, number: int) -> None:
    """Raises ProcessLookupError if the process has ended and was reaped; a zombie takes signals in silence."""
    signal.pidfd_send_signal(fd, number)


def reap(fd: int) -> int | None:
    """The status of an ended child as subprocess gives it (-N: killed by signal N), which frees its pid.

    None if it has not ended, is not our child or was reaped before.
    """
    with contextlib.suppress(ChildProcessError):
        result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
        if result is not None:
            return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    return None


def pid_of(fd: int) -> int:
    """The pid behind `fd` in our own pid namespace; -1 once it was reaped, 0 if it is not visible from here."""
    with os.fdopen(os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)) as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "Pid":
                return int(value)
    raise OSError(22, "not the descriptor of a process", f"/proc/self/fdinfo/{fd}")


def getfd(fd: int, number: int) -> int:
    """A duplicate, in this process, of the file descriptor `number` of process `fd`; close-on-exec.

    Needs the right to ptrace it (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS).
    """
    from waypoint.linux import libc  # ctypes is slow to load and the supervisor never comes here

    return libc.syscall("pidfd_getfd", fd, number, 0)


def take(pid: int, number: int) -> int:
    """As `getfd`, of the process that has `pid` now."""
    fd = os.pidfd_open(pid)
    try:
        return getfd(fd, number)
    finally:
        os.close(fd)
