"""Reserved disk space, for the writes that free disk space: `<home>/reserve`, a folder of preallocated files.

Removing names, ending sessions, `gc` and the daemon's start all write to names.db first. Before each such write, if the
disk is full, the reserve removes its files, one by one. That frees space, and inodes on a file system with a fixed
number of them (ext4). When the disk has room again, the reserve is filled again.
"""

import contextlib
import errno
import os
from pathlib import Path

from waypoint.linux.storage import filesystem

FOLDER = "reserve"
PIECES = 8
NEEDED_BYTES = 4 << 20
"""Disk space that a write to names.db may need, and the size of a reserved file. SQLite's log grows to some 4 MB."""
NEEDED_FILES = 4
"""The number of new files that a daemon's start needs: two beside names.db, a new mark (marks.py), and one more."""
REFILL_BYTES, REFILL_FILES = 128 << 20, 64
"""The reserve is filled only if this much is free on the disk."""


class Reserve:
    """The reserve of one home. Only one thread at a time may use it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._folder = home / FOLDER
        self._is_short = True

    def make_room(self) -> None:
        """Remove reserved files until NEEDED_BYTES and NEEDED_FILES are free on the disk, or no file is left. Does not
        raise: if the space is not enough, the following write fails.
        """
        with contextlib.suppress(OSError):
            pieces = self._pieces()
            while not self._has_room() and pieces:
                pieces.pop().unlink()
                self._is_short = True

    def refill(self) -> None:
        """Make the missing files again, if the disk has enough free space. Does not raise. Fast if no file is
        missing.
        """
        if not self._is_short:
            return
        with contextlib.suppress(OSError):  # the next call makes the files that are still missing
            if not self._has_plenty():
                return
            if self._folder.is_file():  # made by an earlier version of Waypoint
                self._folder.unlink()
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for number in range(PIECES):
                path = self._folder / str(number)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                try:
                    filesystem.reserve_space(fd, NEEDED_BYTES, os.fspath(path))
                finally:
                    os.close(fd)
            self._is_short = False

    def _pieces(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else list(self._home.glob(FOLDER))

    def _has_plenty(self) -> bool:
        return filesystem.free_bytes(self._home) >= REFILL_BYTES and filesystem.has_files(self._home, REFILL_FILES)

    def _has_room(self) -> bool:
        """Whether NEEDED_BYTES and NEEDED_FILES are free. On a nearly full disk this is tried, because ext4 reserves a
        part of the space that statvfs(3) counts as free for itself, and another part for root.
        """
        if self._has_plenty():
            return True
        try:
            with contextlib.ExitStack() as opened:
                fds = [self._open_nameless(opened) for _ in range(NEEDED_FILES)]
                filesystem.reserve_space(fds[0], NEEDED_BYTES, os.fspath(self._home))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return False
            raise
        return True

    def _open_nameless(self, opened: contextlib.ExitStack) -> int:
        fd = os.open(self._home, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        opened.callback(os.close, fd)
        return fd
