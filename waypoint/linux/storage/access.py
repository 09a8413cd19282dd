"""Checking files with the rights of another user: setfsuid(2), setgroups(2), faccessat2(2).

A path that is checked as a user and then opened as root may lead to another file by then. So open the file as the user,
and check the descriptor.
"""

import array
import contextlib
import errno
import os
from collections.abc import Iterator, Sequence

from waypoint.linux.calls import libc

_AT_FDCWD, _AT_EACCESS = -100, 0x200
_NO_ID = -1  # (uid_t) -1: setfsuid(2) changes nothing and returns the present id


@contextlib.contextmanager
def as_user(uid: int, gid: int, groups: Sequence[int]) -> Iterator[None]:
    """Give the calling thread, which must be root's, the file access rights of the user `uid` with these groups for the
    `with` block. Files that it creates belong to the user. Other threads keep their rights.
    """
    own = os.getgroups()
    _set_groups(groups)
    try:
        group, user = libc.syscall("setfsgid", gid), libc.syscall("setfsuid", uid)
        try:
            # setfsuid does not report failures, so check the id. When the fsuid changes from 0, the kernel removes the
            # thread's capabilities over files (CAP_DAC_OVERRIDE...); when it changes back to 0, they return.
            if libc.syscall("setfsuid", _NO_ID) != uid:
                raise PermissionError(errno.EPERM, "the kernel refuses to act as this user")
            yield
        finally:
            libc.syscall("setfsuid", user)
            libc.syscall("setfsgid", group)
    finally:
        _set_groups(own)


def check(path: str, *, write: bool, known_as: str = "") -> None:
    """Raise OSError unless the calling thread may read the file at `path`, or read and enter the folder, and with
    `write` also write to it. The error does not name the system call, so it can be shown to the user.

    `path` may be the name of a descriptor; then `known_as` is the path for the error.
    """
    wanted = os.R_OK | (os.W_OK if write else 0) | (os.X_OK if os.path.isdir(path) else 0)
    try:
        libc.syscall("faccessat2", _AT_FDCWD, os.fsencode(path), wanted, _AT_EACCESS)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), known_as or path) from None


def _set_groups(groups: Sequence[int]) -> None:
    # Not os.setgroups: the C library would change those of all threads.
    libc.syscall("setgroups", len(groups), array.array("I", groups).tobytes())
