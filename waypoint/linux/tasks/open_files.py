"""What CRIU's images lack about an open file of another process. The functions raise OSError if it was closed."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator

from waypoint.linux.tasks import pidfd

_USERS = "user."


def attributes(pid: int, number: int) -> dict[str, bytes]:
    """The extended attributes of users (xattr(7)) of the process's open file `number`."""
    with taken(pid, number) as file:
        return {name: os.getxattr(file, name) for name in os.listxattr(file) if name.startswith(_USERS)}


def give_attribute(pid: int, number: int, name: str, value: bytes) -> None:
    """Give a removed file an attribute of users. Raises PermissionError if it is another file, or attribute."""
    with taken(pid, number) as file:
        if os.fstat(file).st_nlink or not name.startswith(_USERS):
            raise PermissionError(name)
        os.setxattr(file, name, value)


def is_watched_folder(pid: int, number: int) -> bool:
    """Return True if the process's open file `number` is a folder that may have been watched by F_NOTIFY (fcntl(2)),
    which gives it an owner.
    """
    with taken(pid, number) as file:
        return stat.S_ISDIR(os.fstat(file).st_mode) and fcntl.fcntl(file, fcntl.F_GETOWN) != 0


@contextlib.contextmanager
def taken(pid: int, number: int) -> Iterator[int]:
    """A duplicate of the process's descriptor."""
    file = pidfd.take(pid, number)
    try:
        yield file
    finally:
        os.close(file)
