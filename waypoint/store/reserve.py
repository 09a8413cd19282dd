"""Disk space that a home keeps for what frees disk space: `<home>/reserve`, a file without content.

Removing names, ending sessions, `gc` and the daemon's start all write to names.db first. Before each such write the
reserve gives some of its space up if the disk is full, piece by piece, since others may take what is given up. When the
disk has room again, the reserve is filled again.
"""

import contextlib
import errno
import os
from pathlib import Path

from waypoint.linux.storage import filesystem

FILE = "reserve"
RESERVE_BYTES = 32 << 20
NEEDED_BYTES = 4 << 20
"""What a write to names.db may need: its log grows to some 4 MB before SQLite empties it."""
REFILL_BYTES = 128 << 20
"""The reserve takes no space from a disk that would have less than this left."""


class Reserve:
    """The reserve of one home. Any thread may use it, one at a time."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE
        self._is_short = True

    def make_room(self) -> None:
        """Give up as much that NEEDED_BYTES are free on the disk, or all that is left. Does not raise: without the
        reserve, the write that follows fails as it would.
        """
        with contextlib.suppress(OSError):
            while not self._has_room() and (left := self._size()) > 0:
                os.truncate(self._path, max(0, left - NEEDED_BYTES))
                self._is_short = True

    def refill(self) -> None:
        """Take what is missing, if the disk has room for it. Does not raise. Costs nothing if nothing is missing."""
        if not self._is_short:
            return
        with contextlib.suppress(OSError):  # it stays short, and takes the rest another time
            if filesystem.free_bytes(self._path.parent) < REFILL_BYTES:
                return
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                filesystem.reserve(fd, RESERVE_BYTES, os.fspath(self._path))
            finally:
                os.close(fd)
            self._is_short = False

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _has_room(self) -> bool:
        """Whether NEEDED_BYTES can be written. Near the end only trying tells: of what statvfs(3) counts as free, ext4
        keeps a part for itself, and another for root, which this process may be.
        """
        folder = self._path.parent
        if filesystem.free_bytes(folder) >= REFILL_BYTES:
            return True
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            filesystem.reserve(fd, NEEDED_BYTES, os.fspath(folder))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return False
            raise
        finally:
            os.close(fd)
        return True
