"""File descriptors of this process and of others (proc_pid_fd(5), pidfd_getfd(2))."""

import os

from waypoint.linux import libc


def path_of(fd: int) -> str:
    """The path that `fd` was opened by, as the kernel knows it now; ` (deleted)` follows if it has no name any more."""
    return os.readlink(f"/proc/self/fd/{fd}")


def take(pid: int, fd: int) -> int:
    """A duplicate, in this process, of what process `pid` has open as `fd`.

    Raises OSError: ESRCH if there is no such process, EBADF if it has no such fd, EPERM without the right to trace it.
    """
    pidfd = os.pidfd_open(pid)
    try:
        return libc.syscall("pidfd_getfd", pidfd, fd, 0, path=f"fd {fd} of pid {pid}")
    finally:
        os.close(pidfd)
