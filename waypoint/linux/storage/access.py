"""Looking at files with the rights of another user: setfsuid(2), setgroups(2), faccessat2(2).

A path that is looked at as its user, and then opened as root, may lead elsewhere by then. So what is to be used is
opened as the user, and it is asked about the descriptor what the user may do.
"""

import array
import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence

from waypoint.linux.calls import libc

_AT_FDCWD, _AT_EACCESS = -100, 0x200
Looking = Callable[[], contextlib.AbstractContextManager[None]]
"""In the context that it makes, the calling thread sees of the machine's files what somebody may."""
_NO_ID = -1  # (uid_t) -1: setfsuid(2) changes nothing, and tells the present id


@contextlib.contextmanager
def as_user(uid: int, gid: int, groups: Sequence[int]) -> Iterator[None]:
    """In the `with` block, the calling thread has the rights over files that the user `uid` with these groups has, and
    no others. What it creates is the user's. Other threads keep their rights.

    The caller is root. Raises OSError.
    """
    own = os.getgroups()
    _set_groups(groups)
    try:
        group, user = libc.syscall("setfsgid", gid), libc.syscall("setfsuid", uid)
        try:
            # It tells no failure. The kernel takes the capabilities over files (CAP_DAC_OVERRIDE and its like) from a
            # thread whose id becomes another than 0, and gives them back with the 0.
            if libc.syscall("setfsuid", _NO_ID) != uid:
                raise PermissionError(errno.EPERM, "the kernel refuses to act as this user")
            yield
        finally:
            libc.syscall("setfsuid", user)
            libc.syscall("setfsgid", group)
    finally:
        _set_groups(own)


def check(path: str, *, write: bool) -> None:
    """Raise OSError unless the calling thread may read the file or folder at `path`, which may be the name of a
    descriptor, enter it if it is a folder, and with `write` also write to it.
    """
    wanted = os.R_OK | (os.W_OK if write else 0) | (os.X_OK if os.path.isdir(path) else 0)
    libc.syscall("faccessat2", _AT_FDCWD, os.fsencode(path), wanted, _AT_EACCESS, path=path)


def _set_groups(groups: Sequence[int]) -> None:
    # Not os.setgroups: the C library would change those of all threads.
    libc.syscall("setgroups", len(groups), array.array("I", groups).tobytes())
