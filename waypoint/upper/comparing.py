"""The differences between two views over one base, entry by entry. Times and sizes of folders do not count."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from waypoint.linux.calls import abilities
from waypoint.linux.storage import beneath, btrfs_changes
from waypoint.model.paths import is_below
from waypoint.upper.marks import OF_OVERLAYS, OF_WAYPOINT
from waypoint.upper.views import READ_FOLDER, Candidate, Entry, Pairs, Sides

How = Literal["added", "removed", "changed", "type", "attributes"]
"""`type`: a file became a folder, a link..., `attributes`: only owner, mode or extended attributes differ."""

_PIECE = 1 << 18
READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OF_OVERLAYS = ("trusted.", *OF_OVERLAYS, *OF_WAYPOINT)


class Change(NamedTuple):
    """An entry that differs. `path`: relative to the views. `wanted`, `present`: its facts in the two views; None:
    missing. `source`: the path from which a folder of the base was moved here, or "". The entries below a folder that
    was added, removed or moved are changes of their own.
    """

    path: str
    how: How
    wanted: os.stat_result | None
    present: os.stat_result | None
    source: str = ""


class Scope:
    """The paths that are compared: those at or below `only` (empty: all), except those at or below `excluded`."""

    def __init__(self, only: Iterable[str] = (), excluded: Iterable[str] = ()) -> None:
        self._only = frozenset(only)
        self._excluded = frozenset(excluded)
        self._below_only = tuple(f"{one}/" for one in self._only)
        self._below_excluded = tuple(f"{one}/" for one in self._excluded)

    def concerns(self, path: str) -> bool:
        """Whether the path, or something below it, is compared."""
        if path in self._excluded or path.startswith(self._below_excluded):
            return False
        return self.has(path) or any(one.startswith(f"{path}/") for one in self._only)

    def has(self, path: str) -> bool:
        return not self._only or path in self._only or path.startswith(self._below_only)


def changes(differing: Iterable[Candidate], pairs: Pairs, scope: Scope) -> Iterator[Change]:
    """Yield the changes that make the present view like the wanted one, each folder directly before its content.

    `differing`: the candidates for this scope. Reads content with the rights of the calling thread; files that it may
    not read are compared by size and time. Raises OSError.
    """
    compared = None  # the last folder that was compared with all its content
    for candidate in differing:
        path, is_whole = candidate.path, candidate.is_whole
        if candidate.is_same and not candidate.is_folder:
            continue
        if compared is not None and is_below(path, compared):
            continue
        compared = None
        sides = pairs.at(path)
        wanted, present = look(sides)
        how = compare_one(sides, wanted, present)
        names: set[str] = set()
        if is_whole or how in ("type", "removed"):
            compared = path
            names = {*names_in(sides.wanted, wanted), *names_in(sides.present, present)}
        if how is not None and scope.has(path):
            yield Change(path, how, wanted, present, _absolute(path, candidate.source))
        if names:
            yield from _compare_all(path, names, pairs, scope)


def _compare_all(folder: str, names: Iterable[str], pairs: Pairs, scope: Scope) -> Iterator[Change]:
    """Yield the changes of the entries `names` of a folder, and of everything below them."""
    waiting = _paths_below(folder, names, scope)  # no recursion: the session chooses how deep its folders are
    while waiting:
        path = waiting.pop()
        sides = pairs.at(path)
        wanted, present = look(sides)
        how = compare_one(sides, wanted, present)
        below = {*names_in(sides.wanted, wanted), *names_in(sides.present, present)}
        if how is not None and scope.has(path):
            yield Change(path, how, wanted, present)
        waiting += _paths_below(path, below, scope)


def look(sides: Sides) -> tuple[os.stat_result | None, os.stat_result | None]:
    """The facts of the entries in the wanted and the present view; None: missing."""
    wanted, present = sides
    return None if wanted is None else wanted.look(), None if present is None else present.look()


def _paths_below(folder: str, names: Iterable[str], scope: Scope) -> list[str]:
    """The paths that are compared, sorted; the first one is the last of the list."""
    return [path for name in sorted(names, reverse=True) if scope.concerns(path := f"{folder}/{name}")]


def _absolute(path: str, source: str) -> str:
    """The path of a moved folder's origin, relative to the view. `source`: the value of its redirect attribute."""
    if not source or source.startswith("/"):
        return source.strip("/")
    return os.path.join(os.path.dirname(path), source)


def names_in(entry: Entry | None, facts: os.stat_result | None) -> list[str]:
    """The names in the entry, if it is a folder that may be read."""
    if entry is None or facts is None or not stat.S_ISDIR(facts.st_mode):
        return []
    with contextlib.suppress(PermissionError), entry.opened(READ_FOLDER) as folder:
        return os.listdir(folder)
    return []


def compare_one(sides: Sides, wanted: os.stat_result | None, present: os.stat_result | None) -> How | None:
    """How the entries differ, without the content of folders; None: they do not."""
    if wanted is None or sides.wanted is None:
        return None if present is None else "removed"
    if present is None or sides.present is None:
        return "added"
    if stat.S_IFMT(wanted.st_mode) != stat.S_IFMT(present.st_mode):
        return "type"
    if not _has_same_content(sides.wanted, sides.present, wanted, present):
        return "changed"
    owners = [(facts.st_mode, facts.st_uid, facts.st_gid) for facts in (wanted, present)]
    is_other = owners[0] != owners[1] or attributes(sides.wanted) != attributes(sides.present)
    return "attributes" if is_other and not _stands_in(wanted, present) else None


def _stands_in(wanted: os.stat_result, present: os.stat_result) -> bool:
    """Whether one entry is the copy of another user's folder, which a session without root has in its place."""
    is_possible = not abilities.own().owners and stat.S_ISDIR(wanted.st_mode)
    return is_possible and wanted.st_uid != present.st_uid


def _has_same_content(one: Entry, other: Entry, wanted: os.stat_result, present: os.stat_result) -> bool:
    if stat.S_ISREG(wanted.st_mode):
        if wanted.st_size != present.st_size:
            return False
        if has_same_blocks(one, other, wanted, present):
            return True
        try:
            return _reads_same(one, other)
        except PermissionError:
            return wanted.st_mtime_ns == present.st_mtime_ns
    if stat.S_ISLNK(wanted.st_mode):
        return os.readlink(one.name, dir_fd=one.folder) == os.readlink(other.name, dir_fd=other.folder)
    return wanted.st_rdev == present.st_rdev


def has_same_blocks(one: Entry, other: Entry, wanted: os.stat_result, present: os.stat_result) -> bool:
    """Whether two files of the same size are known to have the same content. Reads none."""
    if not wanted.st_size or -1 in (one.upper, other.upper):
        return not wanted.st_size
    return btrfs_changes.has_same_extents((one.upper, wanted.st_ino), (other.upper, present.st_ino))


def _reads_same(one: Entry, other: Entry) -> bool:
    with contextlib.ExitStack() as held:
        files = []
        for entry in (one, other):
            files.append(os.open(entry.name, READ_FILE, dir_fd=entry.folder))
            held.callback(os.close, files[-1])
        while True:
            pieces = [os.read(file, _PIECE) for file in files]
            if pieces[0] != pieces[1]:
                return False
            if not pieces[0]:
                return True


def attributes(entry: Entry) -> dict[str, bytes]:
    """The extended attributes of an entry, without those of overlayfs."""
    path = f"{beneath.name_of(entry.folder)}/{entry.name}"
    names = (name for name in os.listxattr(path, follow_symlinks=False) if not name.startswith(_OF_OVERLAYS))
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}


def contents(change: Change, pairs: Pairs, most: int) -> tuple[bytes | None, bytes | None]:
    """A change's content in the present and the wanted view, of files at most `most` bytes and one more: the bytes of a
    file, the target of a link; None if the entry is missing or is neither. Raises PermissionError.
    """
    wanted, present = pairs.at(change.path)
    return _content(present, change.present, most), _content(wanted, change.wanted, most)


def _content(entry: Entry | None, facts: os.stat_result | None, most: int) -> bytes | None:
    if entry is None or facts is None:
        return None
    if stat.S_ISLNK(facts.st_mode):
        return os.readlink(os.fsencode(entry.name), dir_fd=entry.folder)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size == 0:
        return b"" if stat.S_ISREG(facts.st_mode) else None
    file = os.open(entry.name, READ_FILE, dir_fd=entry.folder)
    try:
        return os.read(file, min(facts.st_size, most) + 1)
    finally:
        os.close(file)
