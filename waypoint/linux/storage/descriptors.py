"""File descriptors of this process (proc_pid_fd(5))."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from waypoint.linux.calls.paths import StrPath


@contextmanager
def open_folder(path: StrPath) -> Iterator[int]:
    """A read-only descriptor of the folder `path`, closed when the `with` ends."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def path_of(fd: int) -> str:
    """The present path of the file behind `fd`. The kernel appends ` (deleted)` if the file's name was removed."""
    return os.readlink(f"/proc/self/fd/{fd}")


def mount_id(fd: int) -> int:
    """The id of the mount through which the file behind `fd` was opened, as in mountinfo."""
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))
