"""The folder that the daemon and a session's shell share (docs/protocol.md, section 3), reached through a directory
fd.

It belongs to the session's user, who may put anything there: names are never followed, what is opened is checked,
reads are bounded.
"""

import contextlib
import os
import stat


class RunFolder:
    """`fd` stays the caller's. What is created belongs to the folder's owner, mode 0600."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        facts = os.fstat(fd)
        self._owner = (facts.st_uid, facts.st_gid)

    def write(self, name: str, data: bytes) -> None:
        """Make the file anew. Nobody may look at it before this has returned. Raises OSError (ENOSPC, EDQUOT)."""
        self.remove(name)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fchown(fd, *self._owner)
        except BaseException:
            self.remove(name)
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

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, PermissionError):
            os.unlink(name, dir_fd=self.fd)
