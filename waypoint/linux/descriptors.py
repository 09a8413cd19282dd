"""File descriptors of this process (proc_pid_fd(5))."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from waypoint.linux.programs import StrPath


@contextmanager
def open_folder(path: StrPath) -> Iterator[int]:
    """A descriptor of the folder."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def path_of(fd: int) -> str:
    """The path that `fd` was opened by, as the kernel knows it now; ` (deleted)` follows if it has no name any more."""
    return os.readlink(f"/proc/self/fd/{fd}")
