"""Knowing again a file or a folder that nobody has changed, without reading it."""

import hashlib
import os
import stat
import time
from collections.abc import Collection

from waypoint.parcel.parcel_records import Inode

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_YOUNG_NS = 1_000_000_000
"""What has changed in so short a time may change once more without being seen: a time of change is a tick's."""


def stamp_of(fd: int, homes: Collection[Inode] = ()) -> str:
    """A text for the open file or folder `fd` that is another one when anything in it has changed, by inode, time of
    change and size of each file; "" if that cannot be told: something has just changed. `homes`: device and inode of
    folders that are not looked into. Raises OSError.
    """
    now, found = time.time_ns(), hashlib.sha256()
    waiting = [b""]
    while waiting:
        newest = _add(found, fd, waiting.pop(), waiting, homes)
        if newest > now - _YOUNG_NS:
            return ""
    return found.hexdigest()


def _add(found: "hashlib._Hash", top: int, path: bytes, waiting: list[bytes], homes: Collection[Inode]) -> int:
    """Add what is at `path` in `top`, and if it is a folder what is in it. Returns the newest time of change."""
    fd = os.open(path, _FOLDER, dir_fd=top) if path else os.dup(top)
    try:
        facts = os.fstat(fd)
        found.update(_line(path, facts))
        newest = facts.st_ctime_ns
        for name in sorted(map(os.fsencode, os.listdir(fd))) if stat.S_ISDIR(facts.st_mode) else ():
            inner = os.stat(name, dir_fd=fd, follow_symlinks=False)
            below = path + b"/" + name if path else name
            if (inner.st_dev, inner.st_ino) in homes:
                continue
            if stat.S_ISDIR(inner.st_mode):
                waiting.append(below)
            else:
                found.update(_line(below, inner))
                newest = max(newest, inner.st_ctime_ns)
        return newest
    finally:
        os.close(fd)


def _line(path: bytes, facts: os.stat_result) -> bytes:
    numbers = facts.st_dev, facts.st_ino, facts.st_ctime_ns, facts.st_size, facts.st_mode
    return b"%d %d %d %d %o %d %b\0" % (*numbers, len(path), path)
