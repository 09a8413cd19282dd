"""The folder that the daemon and a session's shell share (docs/protocol.md, section 3), reached through a directory
fd.

It belongs to the session's user, who may put anything there: names are never followed, what is opened is checked,
reads are bounded.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

_ASIDE = ".waypoint-"  # what our files begin with in a folder of others


class Spare(NamedTuple):
    """A folder of the session that is on no disk: `path` as the session sees it, `open` gives a descriptor of it."""

    path: str
    open: Callable[[], int]


class RunFolder:
    """`fd` stays the caller's. What is created belongs to the folder's owner, mode 0600."""

    def __init__(self, fd: int, spare: Spare) -> None:
        """`spare`: where content goes for which the disk has no room; a link in the folder then leads to it."""
        self.fd = fd
        self._spare = spare
        facts = os.fstat(fd)
        self._owner = (facts.st_uid, facts.st_gid)

    def write(self, name: str, data: bytes) -> None:
        """Make the file anew. Nobody may look at it before this has returned. Raises OSError (ENOSPC, EDQUOT)."""
        self.remove(name)
        try:
            self._write_in(self.fd, name, data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Whoever has filled the disk needs a command that makes room again. A link needs none.
            self._write_aside(name, data)

    def _write_aside(self, name: str, data: bytes) -> None:
        spare = self._spare.open()
        try:
            aside = f"{_ASIDE}{name}"
            _unlink(spare, aside)
            self._write_in(spare, aside, data)
            os.symlink(f"{self._spare.path}/{aside}", name, dir_fd=self.fd)
        finally:
            os.close(spare)

    def _write_in(self, folder: int, name: str, data: bytes) -> None:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fchown(fd, *self._owner)
        except BaseException:
            _unlink(folder, name)
            raise
        finally:
            os.close(fd)

    def open_fifo(self, name: str) -> int:
        """Open the FIFO for reading and writing (so that neither side's open blocks), not blocking; make it if it is
        not there.
        """
        for _ in range(3):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(name, 0o600, dir_fd=self.fd)
            try:
                fd = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
            except OSError:
                self.remove(name)
                continue
            facts = os.fstat(fd)
            if stat.S_ISFIFO(facts.st_mode) and facts.st_nlink == 1:
                os.fchown(fd, *self._owner)
                return fd
            os.close(fd)  # someone put something else there
            self.remove(name)
        raise FileExistsError(f"something keeps replacing the FIFO {name} in the session's /run/waypoint")

    def open_fifo_to_write(self, name: str) -> int:
        """Open the FIFO for writing only, not blocking. Raises OSError: ENXIO if nobody reads it."""
        fd = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileExistsError(f"{name} in the session's /run/waypoint is no FIFO")
        return fd

    def names(self) -> list[str]:
        """What is in it now. Opened anew: of an open folder overlayfs shows what was there when it was last read."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def rename(self, name: str, new: str) -> None:
        """Raises OSError."""
        os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def read(self, name: str, limit: int) -> bytes:
        """The first bytes of the file. Raises OSError, also if it is a link or no plain file."""
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise FileExistsError(errno.EEXIST, "is no plain file", name)
            return os.read(fd, limit)
        finally:
            os.close(fd)

    def size(self, name: str) -> int:
        """Bytes of the file. Raises OSError, also if it is a link or no plain file."""
        facts = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        if not stat.S_ISREG(facts.st_mode):
            raise FileExistsError(errno.EEXIST, "is no plain file", name)
        return facts.st_size

    def inode(self, name: str) -> int:
        """Of what has that name, a link itself. Raises FileNotFoundError."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_ino

    def remove(self, name: str) -> None:
        """Remove it, and what its link of ours leads to."""
        with contextlib.suppress(OSError):
            if os.readlink(name, dir_fd=self.fd) == f"{self._spare.path}/{_ASIDE}{name}":
                spare = self._spare.open()
                _unlink(spare, f"{_ASIDE}{name}")
                os.close(spare)
        _unlink(self.fd, name)


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
        os.unlink(name, dir_fd=folder)
