"""Whether two files with one name are the same, by what can be told of them quickly."""

import contextlib
import errno
import os
import stat
from enum import StrEnum
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.linux.storage.access import Looking
from waypoint.upper.comparing.stack import VANISHED, Shown

MOST_READ = 1 << 20
"""Files of one size up to this many bytes are compared by content; larger ones by their time of change."""

_PIECE = 1 << 18
_NO_ATTRIBUTES = (*VANISHED, errno.ENOTSUP, errno.ENODATA)
_NOT_THE_FILES = ("trusted.", "user.overlay.")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class How(StrEnum):
    """What became of a name. RETYPED: it is of another type now, such as a link. METADATA: nothing but its owner, its
    permissions or its extended attributes are others.
    """

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    RETYPED = "retyped"
    METADATA = "metadata"


class Side(NamedTuple):
    """A name in the folder `folder`, a descriptor, and what was found there."""

    folder: int
    name: str
    found: Shown

    def path(self) -> str:
        return f"{beneath.name_of(self.folder)}/{self.name}"


def compared(one: Side, other: Side, looking: Looking) -> How | None:
    """How `other` differs from `one`; None if it does not. The times of folders, and of files with the same content, do
    not count. `looking`: with whose rights content is read; what may not be read is compared by its time of change.
    Raises OSError.
    """
    before, now = one.found.facts, other.found.facts
    if stat.S_IFMT(before.st_mode) != stat.S_IFMT(now.st_mode):
        return How.RETYPED
    if not _has_same_content(one, other, looking):
        return How.CHANGED
    if _owner(before) != _owner(now) or _attributes(one) != _attributes(other):
        return How.METADATA
    return None


def _owner(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_mode, facts.st_uid, facts.st_gid


def _has_same_content(one: Side, other: Side, looking: Looking) -> bool:
    before, now = one.found.facts, other.found.facts
    if stat.S_ISREG(now.st_mode):
        if before.st_size != now.st_size:
            return False
        if now.st_size > MOST_READ:
            return before.st_mtime_ns == now.st_mtime_ns
        return now.st_size == 0 or _reads_same(one, other, looking)
    if stat.S_ISLNK(now.st_mode):
        return _link(one) == _link(other)
    return before.st_rdev == now.st_rdev


def _reads_same(one: Side, other: Side, looking: Looking) -> bool:
    try:
        with contextlib.ExitStack() as held:
            held.enter_context(looking())
            files = []
            for side in (one, other):
                files.append(os.open(side.name, _OPEN, dir_fd=side.folder))
                held.callback(os.close, files[-1])
            while True:
                pieces = [os.read(fd, _PIECE) for fd in files]
                if pieces[0] != pieces[1]:
                    return False
                if not pieces[0]:
                    return True
    except OSError:  # it may not be read, or has vanished
        return one.found.facts.st_mtime_ns == other.found.facts.st_mtime_ns


def _link(side: Side) -> bytes | None:
    with contextlib.suppress(OSError):  # it has vanished
        return os.readlink(os.fsencode(side.name), dir_fd=side.folder)
    return None


def _attributes(side: Side) -> dict[str, bytes]:
    """The extended attributes that a session may see."""
    path = side.path()
    try:
        names = [one for one in os.listxattr(path, follow_symlinks=False) if not one.startswith(_NOT_THE_FILES)]
        return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise
        return {}
