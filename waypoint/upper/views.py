"""Two views (overlays) over one base, and the paths at which they can differ: those with an entry in an upper folder.

The session controls the content of the views and may have replaced any folder by a link. So each entry is opened from a
descriptor of its folder (linux/storage/beneath.py).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from waypoint.linux.storage import beneath, btrfs_changes
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper import layout
from waypoint.upper.changes import has_former, is_former, is_whiteout
from waypoint.upper.marks import OPAQUE, REDIRECT

READ_FOLDER = os.O_RDONLY | os.O_DIRECTORY
MOST_ENTRIES = 1_000_000
"""Most entries of an upper directory: all are held in memory at once, some hundred bytes each."""
_MOST_PATH = 16_384
"""Most characters of a path: the path of each folder takes memory and time."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Views(NamedTuple):
    """Descriptors of the roots of two overlays over one base, or of the base itself. `wanted` has the state that
    `present` gets in a restore or an apply.
    """

    wanted: int
    present: int


class Entry(NamedTuple):
    """An entry of a view: a descriptor of its folder, and its name. `facts`: those of an entry that nobody changes, if
    they are known; then `upper` is a descriptor of the upper directory that has it. No method follows a link.
    """

    folder: int
    name: str
    facts: os.stat_result | None = None
    upper: int = -1

    def look(self) -> os.stat_result | None:
        if self.facts is not None:
            return self.facts
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        return None

    @contextlib.contextmanager
    def opened(self, flags: int = os.O_PATH) -> Iterator[int]:
        with beneath.opened(self.folder, self.name, flags | os.O_NOFOLLOW) as fd:
            yield fd


class Sides(NamedTuple):
    """The entries of one path in two views; None: a part above the path is missing or is no folder."""

    wanted: Entry | None
    present: Entry | None


class _Side:
    """One view, and its upper directory if that is sealed and known. Keeps the folder of the last path open in both."""

    def __init__(self, view: int, upper: int | None, *, across: bool) -> None:
        self._view = view
        self._upper = upper
        self._across = across
        self._path = ""
        self._folders: list[int | None] = []  # of the upper directory, and of the view once it was needed

    def close(self) -> None:
        for fd in self._folders:
            if fd is not None:
                os.close(fd)
        self._folders = []

    def enter(self, folder: str) -> None:
        self.close()
        self._path = folder
        self._folders.append(None if self._upper is None else _open_if_there(self._upper, folder, across=False))

    def entry(self, name: str) -> Entry | None:
        """What the upper directory has there, unless it is a folder, the view shows unchanged. A look at it through the
        overlay takes three times as long.
        """
        upper = self._folders[0]
        if upper is not None and self._upper is not None:
            with contextlib.suppress(FileNotFoundError):
                facts = os.stat(name, dir_fd=upper, follow_symlinks=False)
                if not stat.S_ISDIR(facts.st_mode) and not is_whiteout(facts):
                    return Entry(upper, name, facts, self._upper)
        if len(self._folders) == 1:
            self._folders.append(_open_if_there(self._view, self._path, across=self._across))
        folder = self._folders[1]
        return None if folder is None else Entry(folder, name)


class Pairs:
    """Finds entries in two views. Keeps the folder of the last path open, because the next path often is in it; so an
    entry may be in a folder that was moved away meanwhile.

    `uppers`: descriptors of the views' upper directories, if nobody changes them. `across`: what is mounted in a view
    is a part of it.
    """

    def __init__(
        self, views: Views, uppers: tuple[int | None, int | None] = (None, None), *, across: bool = False
    ) -> None:
        self.views = views
        self._sides = [_Side(*given, across=across) for given in zip(views, uppers, strict=True)]
        self._folder: str | None = None
        self._last: tuple[str, Sides] | None = None

    def __enter__(self) -> "Pairs":
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._sides:
            side.close()
        self._folder = self._last = None

    def at(self, path: str) -> Sides:
        """The entries at `path`, valid until the next call with another path."""
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        folder, _, name = path.rpartition("/")
        if folder != self._folder:
            self.__exit__()
            _check_length(path)
            for side in self._sides:
                side.enter(folder)
            self._folder = folder
        wanted, present = self._sides
        found = Sides(wanted.entry(name), present.entry(name))
        self._last = path, found
        return found


def _open_if_there(view: int, folder: str, *, across: bool) -> int | None:
    try:
        return beneath.open_beneath(view, folder, os.O_PATH | os.O_DIRECTORY, across=across)
    except OSError as error:
        if error.errno not in (*_ABSENT, errno.EXDEV):
            raise
        return None


class _Facts(NamedTuple):
    """The facts by which entries of upper directories are compared. A file and its copy in a snapshot have the same.

    `hides`: how the entry hides the base's content at its path; "": not, or it is no folder and no whiteout.
    """

    hides: str
    is_folder: bool
    inode: int = 0
    mode: int = 0
    owner: tuple[int, int] = (0, 0)
    changed_ns: int = 0


_WHITEOUT, _OPAQUE = "removed", "replaced"
_MOVED = "moved from "  # and the value of the redirect attribute


class Candidate(NamedTuple):
    """A path at which two views can differ. `is_same`: the upper directories have the same entry there; of a folder,
    extended attributes may differ. `is_whole`: one view hides a part of the base that the other one shows, so all below
    the path must be compared, and no path below it is a candidate. `source`: in the wanted view, the path from which a
    folder of the base was moved here: absolute in the view, or relative to the folder above `path`. `needs_base`: once
    the present view is like the wanted one, a change of the base can make them differ, for one of them shows the base's
    entry and the other one has a copy.
    """

    path: str
    is_same: bool
    is_whole: bool
    is_folder: bool
    source: str
    needs_base: bool


class Touched(NamedTuple):
    """Where two upper directories can differ. `paths`: of changed files and folders, with all folders above them.
    `new_names`: by the inode of a folder, names that were added to it: what has such a name may have been moved there,
    with everything in it. `whole`: paths below which everything can differ.
    """

    paths: set[str]
    new_names: dict[int, set[str]]
    whole: frozenset[str] = frozenset()


def find_touched(tree: str, other: str, target: str) -> Touched | None:
    """Where the upper directories for the mount at `target` can differ in two sealed upper trees; None if that is not
    known: neither is a later snapshot of the other one.
    """
    found = btrfs_changes.changes(tree, other) or btrfs_changes.changes(other, tree)
    return None if found is None else _touched(found, tree, target)


def touched_after(tree: str, mark: int, target: str, unsure: frozenset[str]) -> Touched | None:
    """Where a sealed snapshot of an upper tree differs from the state in which the tree had this `mark`
    (contract.Pool.mark), and all at or below the paths `unsure`; None if that is not known.
    """
    found = btrfs_changes.changes_after(tree, mark)
    if found is None:
        return None
    touched = _touched(found, tree, target)
    for path in unsure:
        while path and path not in touched.paths:
            touched.paths.add(path)
            path = path.rpartition("/")[0]
    return touched._replace(whole=unsure)


def _touched(found: btrfs_changes.Changes, tree: str, target: str) -> Touched:
    above = f"{os.path.relpath(layout.upper_of(tree, target), tree)}/"
    paths = (os.fsdecode(path) for path in found.paths)
    names = {inode: set(map(os.fsdecode, added)) for inode, added in found.new_names.items()}
    return Touched({path.removeprefix(above) for path in paths if path.startswith(above)}, names)


def candidates(
    wanted_upper: str,
    present_upper: str,
    is_asked: Callable[[str], bool] = lambda _: True,
    touched: Touched | None = None,
) -> list[Candidate]:
    """The candidates, each folder directly before its content, except those for which `is_asked` is False, with all
    below them. An upper directory that does not exist has no entries. `touched`: None: they can differ anywhere. Raises
    OSError (E2BIG) if there are more than MOST_ENTRIES.
    """
    found: list[Candidate] = []
    with contextlib.ExitStack() as opened:
        roots = [
            opened.enter_context(open_folder(upper)) if os.path.isdir(upper) else None
            for upper in (wanted_upper, present_upper)
        ]
        may_be_former = any(root is not None and has_former(root) for root in roots)
        waiting = [_Found("", None, None, is_new=touched is None)]
        while waiting:
            one = waiting.pop()
            if one.path:
                found.append(candidate := _candidate(one))
                if candidate.is_whole or not candidate.is_folder:
                    continue
            below = [each for each in _below(roots, one, touched) if is_asked(each.path)]
            if may_be_former:
                below = [each for each in below if not _are_former(roots, each)]
            if len(found) + len(waiting) + len(below) > MOST_ENTRIES:
                raise OSError(errno.E2BIG, f"more than {MOST_ENTRIES} of its files differ from the base")
            waiting += reversed(below)
    return found


class _Found(NamedTuple):
    """A path in one or both upper directories, and the facts of its entries. `is_new`: everything below may differ."""

    path: str
    wanted: _Facts | None
    present: _Facts | None
    is_new: bool


def _are_former(roots: Sequence[int | None], found: _Found) -> bool:
    """Whether the path has only files that a restore has placed, in one or both upper directories."""
    sides = zip(roots, (found.wanted, found.present), strict=True)
    there = [root for root, facts in sides if root is not None and facts is not None]
    folder, name = os.path.split(found.path)
    for root in there:
        with beneath.opened(root, folder) as above:
            if not is_former(above, name):
                return False
    return bool(there)


def _candidate(found: _Found) -> Candidate:
    path, wanted, present, _ = found
    hides = "" if wanted is None else wanted.hides
    is_whole = hides != ("" if present is None else present.hides)
    is_folder = (wanted is not None and wanted.is_folder) or (present is not None and present.is_folder)
    source = hides.removeprefix(_MOVED) if hides.startswith(_MOVED) else ""
    return Candidate(path, wanted == present, is_whole, is_folder, source, _needs_base(wanted, present))


def _needs_base(wanted: _Facts | None, present: _Facts | None) -> bool:
    if wanted is None:
        return True
    if present is None:
        return wanted.is_folder
    return (wanted.hides, wanted.is_folder) != (present.hides, present.is_folder)


def _below(roots: Sequence[int | None], above: _Found, touched: Touched | None) -> Iterator[_Found]:
    """The entries of a folder of the upper directories, sorted by name."""
    prefix = f"{above.path}/" if above.path else ""
    with contextlib.ExitStack() as opened:
        folders: list[int | None] = []
        items: list[dict[str, os.DirEntry[str]]] = []
        for root, facts in zip(roots, (above.wanted, above.present), strict=True):
            is_there = root is not None and (not above.path or (facts is not None and facts.is_folder))
            fd = (
                opened.enter_context(beneath.opened(root, above.path, READ_FOLDER))
                if root is not None and is_there
                else None
            )
            folders.append(fd)
            items.append({} if fd is None else {item.name: item for item in opened.enter_context(os.scandir(fd))})
        one, other = items
        names = one.keys() | other.keys() if one and other else (one or other).keys()
        new_names: set[str] = set()
        if touched is not None and not above.is_new:
            inodes = (os.fstat(fd).st_ino for fd in folders if fd is not None)
            new_names = set().union(
                *(touched.new_names.get(inode, set()) for inode in inodes), one.keys() ^ other.keys()
            )
            names = {name for name in names if name in new_names or prefix + name in touched.paths}
        are_compared = None not in roots
        for name in sorted(names):
            path = prefix + name
            _check_length(path)
            wanted, present = (
                None if fd is None or name not in found else _facts(fd, found[name], is_compared=are_compared)
                for fd, found in zip(folders, items, strict=True)
            )
            is_new = above.is_new or name in new_names or (touched is not None and path in touched.whole)
            yield _Found(path, wanted, present, is_new)


_FILE = _Facts("", is_folder=False)


def _facts(folder: int, item: "os.DirEntry[str]", *, is_compared: bool) -> _Facts:
    if not is_compared and (item.is_file(follow_symlinks=False) or item.is_symlink()):
        return _FILE
    facts = item.stat(follow_symlinks=False)
    is_folder = stat.S_ISDIR(facts.st_mode)
    hides = _WHITEOUT if is_whiteout(facts) else ""
    if is_folder:
        hides = _how_hides(Entry(folder, item.name))
    # A folder's ctime changes with its entries, which are compared on their own.
    changed = 0 if is_folder else facts.st_ctime_ns
    return _Facts(hides, is_folder, facts.st_ino, facts.st_mode, (facts.st_uid, facts.st_gid), changed)


def _check_length(path: str) -> None:
    if len(path) > _MOST_PATH:
        start = f"{path[:40]}..."
        raise OSError(errno.ENAMETOOLONG, f"a path of more than {_MOST_PATH} characters", start)


def _how_hides(folder: Entry) -> str:
    """How a folder of an upper directory hides the base's folder."""
    with folder.opened(READ_FOLDER) as fd:
        names = os.listxattr(fd)
        if REDIRECT in names:
            return _MOVED + os.fsdecode(os.getxattr(fd, REDIRECT))
        return _OPAQUE if OPAQUE in names else ""
