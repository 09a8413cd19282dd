"""By what it is known that a file or folder of the machine has not changed: its inode, size and times.

The kernel sets ctime at each change of content, attributes or name, and nobody can set it to what he likes but by
setting the clock. Two changes within one tick of the clock (some milliseconds) have the same.
"""

import os
import stat
from contextlib import ExitStack
from typing import NamedTuple

from waypoint.linux.calls import powers
from waypoint.linux.storage.beneath import name_of
from waypoint.upper.comparing.stack import below
from waypoint.upper.writing.content import opened

_ORIGIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20
_NOT_OURS = ("security.selinux",)  # the machine's policy says what it is


class FileMark(NamedTuple):
    """By what a file or folder is known to be unchanged. Of a folder, `entries` and `newest_ns` are of all that is in
    it: how many, and the latest change (ctime); all else is its own.
    """

    inode: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    entries: int = 0
    newest_ns: int = 0


class Attributes(NamedTuple):
    """What a folder has besides its entries."""

    mode: int
    uid: int
    gid: int
    xattrs: dict[str, bytes]
    mtime_ns: int


def look(folder: int, name: str) -> os.stat_result | None:
    """The facts of `name` in the folder, a link's own; None if it is missing."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def mark(folder: int, name: str) -> FileMark | None:
    """The mark of `name` in the open folder; None if it is missing. Looks at all that a folder has. Raises OSError:
    EXDEV if something is mounted in it.
    """
    facts = look(folder, name)
    if facts is None:
        return None
    entries = newest = 0
    waiting = [name] if stat.S_ISDIR(facts.st_mode) else []
    while waiting:
        path = waiting.pop()
        with opened(folder, path) as fd, os.scandir(fd) as found:
            for item in found:
                inside = item.stat(follow_symlinks=False)
                entries += 1
                newest = max(newest, inside.st_ctime_ns)
                if stat.S_ISDIR(inside.st_mode):
                    waiting.append(below(path, item.name))
    size = 0 if stat.S_ISDIR(facts.st_mode) else facts.st_size
    return FileMark(facts.st_ino, facts.st_mode, size, facts.st_mtime_ns, facts.st_ctime_ns, entries, newest)


def may_be_same(one: FileMark, other: FileMark) -> bool:
    """Whether what has the one mark may have the same content as what has the other."""
    return (one.mode, one.size, one.entries) == (other.mode, other.size, other.entries)


def xattrs_of(file: int | str) -> dict[str, bytes]:
    """The extended attributes that belong to the file itself: without overlayfs's marks."""
    names = os.listxattr(file, follow_symlinks=isinstance(file, int))
    if not names:
        return {}
    marks = powers.overlay_mark("")
    ours = [name for name in names if not name.startswith(marks) and name not in _NOT_OURS]
    return {name: os.getxattr(file, name, follow_symlinks=isinstance(file, int)) for name in ours}


def attributes_of(folder: int) -> Attributes:
    """Those of the open folder. Raises OSError."""
    facts = os.fstat(folder)
    mode = stat.S_IMODE(facts.st_mode)
    return Attributes(mode, facts.st_uid, facts.st_gid, xattrs_of(folder), facts.st_mtime_ns)


def differ(one: Attributes, other: Attributes) -> bool:
    """Whether two folders have other attributes; their times do not count."""
    return (one.mode, one.uid, one.gid, one.xattrs) != (other.mode, other.uid, other.gid, other.xattrs)


def set_attributes(folder: int, present: Attributes, wanted: Attributes) -> None:
    """Give the open folder the attributes `wanted` but for its times; `present`: those that it has. Raises OSError."""
    if (present.uid, present.gid) != (wanted.uid, wanted.gid):
        os.fchown(folder, wanted.uid, wanted.gid)
    for name in present.xattrs.keys() - wanted.xattrs.keys():
        os.removexattr(folder, name)
    for name, value in wanted.xattrs.items():
        if present.xattrs.get(name) != value:
            os.setxattr(folder, name, value)
    os.fchmod(folder, wanted.mode)


def give_attributes(folder: int, wanted: Attributes) -> None:
    """As `set_attributes`, if it has others. Raises OSError."""
    present = attributes_of(folder)
    if differ(present, wanted):
        set_attributes(folder, present, wanted)


def set_mtime(folder: int, mtime_ns: int) -> None:
    """Nothing is written if that is its time: nobody need be able to. Raises OSError."""
    facts = os.fstat(folder)
    if facts.st_mtime_ns != mtime_ns:
        os.utime(folder, ns=(facts.st_atime_ns, mtime_ns))


def is_same(one: tuple[int, str], other: tuple[int, str]) -> bool:
    """Whether two names, each in an open folder, are of files with the same content, owner, mode and attributes; their
    times do not count. Folders, and files with several names, are never the same. Raises OSError.
    """
    facts, others = look(*one), look(*other)
    has_more_names = facts is not None and others is not None and facts.st_nlink + others.st_nlink > 2
    return not has_more_names and is_alike(one, other)


def is_alike(one: tuple[int, str], other: tuple[int, str]) -> bool:
    """As `is_same`, also of files that have several names."""
    facts, others = look(*one), look(*other)
    if facts is None or others is None or stat.S_ISDIR(facts.st_mode):
        return False
    if (facts.st_mode, facts.st_uid, facts.st_gid) != (others.st_mode, others.st_uid, others.st_gid):
        return False
    paths = [f"{name_of(folder)}/{name}" for folder, name in (one, other)]
    if xattrs_of(paths[0]) != xattrs_of(paths[1]):
        return False
    if stat.S_ISLNK(facts.st_mode):
        return os.readlink(paths[0]) == os.readlink(paths[1])
    return not stat.S_ISREG(facts.st_mode) or (facts.st_size == others.st_size and _reads_same(one, other))


def _reads_same(one: tuple[int, str], other: tuple[int, str]) -> bool:
    with ExitStack() as held:
        files = []
        for folder, name in (one, other):
            files.append(os.open(name, _ORIGIN, dir_fd=folder))
            held.callback(os.close, files[-1])
        while True:
            pieces = [os.read(fd, _PIECE) for fd in files]
            if pieces[0] != pieces[1]:
                return False
            if not pieces[0]:
                return True
