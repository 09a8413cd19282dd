"""Two views (overlays) over one base, and the paths at which they can differ: those with an entry in an upper folder.

The session controls the content of the views and may have replaced any folder by a link. So each entry is opened from a
descriptor of its folder (linux/storage/beneath.py).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper.changes import OPAQUE, REDIRECT, is_whiteout

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
    """An entry of a view: a descriptor of its folder, and its name. No method follows a link."""

    folder: int
    name: str

    def look(self) -> os.stat_result | None:
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


class Pairs:
    """Finds entries in two views. Keeps the folder of the last path open, because the next path often is in it; so an
    entry may be in a folder that was moved away meanwhile. `across`: what is mounted in a view is a part
    of it.
    """

    def __init__(self, views: Views, *, across: bool = False) -> None:
        self.views = views
        self._across = across
        self._folder: str | None = None
        self._folders: list[int | None] = []

    def __enter__(self) -> "Pairs":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._folders:
            if fd is not None:
                os.close(fd)
        self._folder, self._folders = None, []

    def at(self, path: str) -> Sides:
        """The entries at `path`, valid until the next call."""
        folder, _, name = path.rpartition("/")
        if folder != self._folder:
            self.__exit__()
            _check_length(path)
            for view in self.views:
                self._folders.append(_open_if_there(view, folder, across=self._across))
            self._folder = folder
        return Sides(*(None if fd is None else Entry(fd, name) for fd in self._folders))


def _open_if_there(view: int, folder: str, *, across: bool) -> int | None:
    try:
        return beneath.open_beneath(view, folder, os.O_PATH | os.O_DIRECTORY, across=across)
    except OSError as error:
        if error.errno not in (*_ABSENT, errno.EXDEV):
            raise
        return None


@contextlib.contextmanager
def pair(path: str, views: Views) -> Iterator[Sides]:
    """The entries at `path`, valid in the `with` block."""
    with Pairs(views, across=True) as pairs:
        yield pairs.at(path)


class _Facts(NamedTuple):
    """The facts by which entries of upper directories are compared. A file and its copy in a snapshot have the same.

    `hides`: how the entry hides the base's content at its path; "": not, or it is no folder and no whiteout.
    """

    hides: str
    inode: int
    mode: int
    owner: tuple[int, int]
    changed_ns: int


_WHITEOUT, _OPAQUE = "removed", "replaced"
_MOVED = "moved from "  # and the value of the redirect attribute


class Candidate(NamedTuple):
    """A path at which two views can differ. `is_same`: the upper directories have the same entry there; of a folder,
    extended attributes may differ. `is_whole`: one view hides a part of the base that the other one shows, so all below
    the path must be compared, and no path below it is a candidate. `source`: in the wanted view, the path from which a
    folder of the base was moved here: absolute in the view, or relative to the folder above `path`.
    """

    path: str
    is_same: bool
    is_whole: bool
    is_folder: bool
    source: str


def candidates(
    wanted_upper: str, present_upper: str, is_asked: Callable[[str], bool] = lambda _: True
) -> list[Candidate]:
    """The candidates, each folder directly before its content, except those for which `is_asked` is False, with all
    below them. An upper directory that does not exist has no entries. Raises OSError (E2BIG) if there are more than
    MOST_ENTRIES.
    """
    wanted, present = (dict(_entries(upper, is_asked)) for upper in (wanted_upper, present_upper))
    found: list[Candidate] = []
    whole = ""
    for path in sorted({*wanted, *present}, key=_in_order):
        if whole and path.startswith(f"{whole}/"):
            continue
        one, other = wanted.get(path), present.get(path)
        hiding = [entry.hides if entry is not None else "" for entry in (one, other)]
        is_whole = hiding[0] != hiding[1]
        is_folder = any(entry is not None and stat.S_ISDIR(entry.mode) for entry in (one, other))
        source = hiding[0].removeprefix(_MOVED) if hiding[0].startswith(_MOVED) else ""
        found.append(Candidate(path, one == other, is_whole, is_folder, source))
        whole = path if is_whole else whole
    return found


def _in_order(path: str) -> str:
    """The key that sorts a folder's content directly behind the folder: `a/b` before `a b`."""
    return path.replace("/", "\0")


def _entries(upper: str, is_asked: Callable[[str], bool]) -> Iterator[tuple[str, _Facts]]:
    if not os.path.isdir(upper):
        return
    with open_folder(upper) as root:
        for number, entry in enumerate(_walk(root, is_asked)):
            if number == MOST_ENTRIES:
                said = f"more than {MOST_ENTRIES} of its files differ from the base"
                raise OSError(errno.E2BIG, said)
            yield entry


def _walk(root: int, is_asked: Callable[[str], bool]) -> Iterator[tuple[str, _Facts]]:
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with beneath.opened(root, folder, READ_FOLDER) as above, os.scandir(above) as found:
            for item in found:
                path = f"{folder}{item.name}"
                _check_length(path)
                if not is_asked(path):
                    continue
                facts = item.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(facts.st_mode)
                hides = _WHITEOUT if is_whiteout(facts) else ""
                if is_folder:
                    hides = _how_hides(Entry(above, item.name))
                    waiting.append(f"{path}/")
                # A folder's ctime changes with its entries, which are compared on their own.
                changed = 0 if is_folder else facts.st_ctime_ns
                owner = (facts.st_uid, facts.st_gid)
                yield path, _Facts(hides, facts.st_ino, facts.st_mode, owner, changed)


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
