"""Copying the files of a pinned base from folders of the machine, in the store's own process.

The machine goes on meanwhile: files vanish, and users may put links in place of folders. So every folder is opened
beneath the first one, without links and without mounts, and what cannot be read is left out and counted.
"""

import errno
import os
import stat
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from waypoint.capture.storing.orders import Gather, Gathered
from waypoint.linux.calls import abilities
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper import copying
from waypoint.upper.views import Entry

_READ = os.O_RDONLY | os.O_DIRECTORY
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def gather(order: Gather, on_progress: Callable[[int], None]) -> Gathered:
    """Raises OSError: the disk is full, or has failed."""
    with open_folder(order.target) as target:
        work = _Gathering(order, target, on_progress)
        for source, place in order.folders:
            work.copy(source, place)
        return Gathered(devices=work.devices, device=work.device, left_out=work.left_out, example=work.example)


def _given(facts: os.stat_result) -> os.stat_result:
    """The facts that a copy gets. Without root no file can be given to another user, so all copies are the user's own,
    without set-user-ID bits.
    """
    if abilities.own().owners:
        return facts
    names = ("st_dev", "st_ino", "st_nlink", "st_size", "st_blocks", "st_rdev", "st_atime_ns", "st_mtime_ns")
    kept = {name: getattr(facts, name) for name in names}
    mode = facts.st_mode & ~(stat.S_ISUID | stat.S_ISGID)
    own = SimpleNamespace(**kept, st_mode=mode, st_uid=os.geteuid(), st_gid=os.getegid())
    return cast(os.stat_result, own)


class _Gathering:
    def __init__(self, order: Gather, target: int, on_progress: Callable[[int], None]) -> None:
        self._hidden, self._emptied = {*order.hidden}, {*order.emptied}
        self._target = target
        self._on_progress = on_progress
        self._bytes = 0
        self._links: dict[tuple[int, int], str] = {}  # by device and inode, the path of the copy
        self.devices = 0
        self.device = ""
        self.left_out = 0
        self.example = ""

    def copy(self, source: str, place: str) -> None:
        """Copy the folder `source` to the folder at the path `place`, which exists."""
        times: list[tuple[str, os.stat_result]] = []  # set at the end: a new entry changes those of its folder
        with open_folder(source) as root:
            waiting = [""]
            while waiting:
                path = waiting.pop()
                shown = f"{source.rstrip('/')}/{path}"
                try:
                    with beneath.opened(root, path, _READ, across=False) as one:
                        facts = _given(os.fstat(one))
                        there = f"{place}/{path}".strip("/")
                        with beneath.opened(self._target, there, _READ) as other:
                            copying.take_attributes(Entry(one, "."), Entry(other, "."), facts)
                            times.append((there, facts))
                            if shown.rstrip("/") not in self._emptied:
                                below = self._fill(one, other, shown.rstrip("/"), there)
                                waiting += [f"{path}/{name}".lstrip("/") for name in below]
                except OSError as error:
                    if error.errno != beneath.MISPLACED:  # something is mounted there: the folder stays empty
                        self._leave_out(shown, error)
        for there, facts in reversed(times):
            with beneath.opened(self._target, there, _READ) as other:
                os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    def _fill(self, one: int, other: int, shown: str, there: str) -> list[str]:
        """Copy the files of an open folder, and make its subfolders, whose names are returned."""
        folders = []
        with os.scandir(one) as found:
            for item in found:
                path = f"{shown}/{item.name}"
                if path in self._hidden:
                    continue
                try:
                    facts = _given(item.stat(follow_symlinks=False))
                    if stat.S_ISDIR(facts.st_mode):
                        os.mkdir(item.name, 0o755, dir_fd=other)
                        folders.append(item.name)
                    elif stat.S_ISCHR(facts.st_mode) or stat.S_ISBLK(facts.st_mode):
                        self.devices += 1
                        self.device = self.device or path
                    else:
                        self._copy_one(Entry(one, item.name), Entry(other, item.name), facts, f"{there}/{item.name}")
                except OSError as error:
                    self._leave_out(path, error)
        return folders

    def _copy_one(self, source: Entry, target: Entry, facts: os.stat_result, there: str) -> None:
        key = (facts.st_dev, facts.st_ino)
        if facts.st_nlink > 1 and key in self._links:
            with beneath.parent_of(self._target, self._links[key]) as (folder, name):
                os.link(name, target.name, src_dir_fd=folder, dst_dir_fd=target.folder, follow_symlinks=False)
            return
        try:
            copying.copy(source, target, facts)
        except OSError:
            if target.look() is not None:
                os.unlink(target.name, dir_fd=target.folder)
            raise
        if facts.st_nlink > 1:
            self._links[key] = there
        self._bytes += facts.st_size
        self._on_progress(self._bytes)

    def _leave_out(self, path: str, error: OSError) -> None:
        if error.errno in _FATAL:
            raise error
        self.left_out += 1
        self.example = self.example or f"{path}: {error.strerror}"
