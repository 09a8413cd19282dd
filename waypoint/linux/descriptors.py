"""File descriptors of this process (proc_pid_fd(5))."""

import os


def path_of(fd: int) -> str:
    """The path that `fd` was opened by, as the kernel knows it now; ` (deleted)` follows if it has no name any more."""
    return os.readlink(f"/proc/self/fd/{fd}")
