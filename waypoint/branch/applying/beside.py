"""The folder beside the files that change: what is to be put there waits in it, and then what was there.

It lies in the same folder, since a rename leads nowhere else on every file system, and nobody but this process's user
may enter it: whoever may write to the folder cannot put something else in place of what waits. He can move the folder
itself; what is found at its name later counts only if it has the mark that it was made with.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from waypoint.linux.storage import beneath, deep, renaming
from waypoint.upper.comparing.stack import below
from waypoint.upper.writing.content import NO_FD, NO_FOLDER, READ, opened

_PROBE = "probe"


class Beside(NamedTuple):
    """`fd`: NO_FD if there is no such folder."""

    fd: int
    name: str

    @classmethod
    @contextmanager
    def made(cls, folder: int, ident: str) -> "Iterator[Beside]":
        """Make it in the open folder. Raises OSError."""
        name = name_for(ident)
        os.mkdir(name, 0o700, dir_fd=folder)
        with opened(folder, name) as fd:
            if not _is_ours(fd) or os.listdir(fd):
                raise OSError(errno.EAGAIN, "somebody has put another folder in its place", name)
            os.fchown(fd, os.geteuid(), os.getegid())
            for attribute in os.listxattr(fd):  # a default ACL, which all that is made in it would get
                if attribute.startswith("system.posix_acl"):
                    os.removexattr(fd, attribute)
            os.fchmod(fd, 0o700)
            os.close(os.open(ident, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=fd))
            yield cls(fd, name)

    @classmethod
    @contextmanager
    def found(cls, folder: int, ident: str) -> "Iterator[Beside]":
        """What is there of it. Raises OSError."""
        name, fd = name_for(ident), NO_FD
        try:
            fd = beneath.open_beneath(folder, name, READ, across=False)
        except OSError as error:
            if error.errno not in NO_FOLDER:
                raise
        try:
            names = os.listdir(fd) if fd >= 0 and _is_ours(fd) else None
            if names == []:  # whoever made it, or was leaving it, was killed
                os.rmdir(name, dir_fd=folder)
            yield cls(fd if names and ident in names else NO_FD, name)
        finally:
            if fd >= 0:
                os.close(fd)

    def path_in(self, folder: str, number: int) -> str:
        """Where what waits for action `number` is, if this folder lies in `folder`."""
        return below(folder, f"{self.name}/{number}")

    def can_move_to(self, folder: int) -> bool:
        """Whether what is here can be renamed into the open folder. Raises OSError."""
        os.close(os.open(_PROBE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self.fd))
        try:
            renaming.rename_new(self.fd, _PROBE, folder, _PROBE)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            os.unlink(_PROBE, dir_fd=self.fd)
            return False
        os.unlink(_PROBE, dir_fd=folder)
        return True

    def remove(self, number: int) -> None:
        """Remove what waits for action `number`, with all in it. Raises OSError."""
        with suppress(FileNotFoundError):
            deep.remove(self.fd, str(number))

    def leave(self, folder: int) -> None:
        """Remove all that is here, and the folder, which lies in the open one. Its mark goes last. Raises OSError."""
        mark = self.name.removeprefix(name_for(""))
        for name in os.listdir(self.fd):
            if name != mark:
                deep.remove(self.fd, name)
        with suppress(FileNotFoundError):
            os.unlink(mark, dir_fd=self.fd)
        with suppress(FileNotFoundError):
            os.rmdir(self.name, dir_fd=folder)


def name_for(ident: str) -> str:
    return f".waypoint-{ident}"


def _is_ours(folder: int) -> bool:
    facts = os.fstat(folder)
    return facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o077
