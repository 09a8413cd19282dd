"""What a folder shows where an upper directory lies over a folder of the machine, as overlayfs merges the two
(overlayfs.rst, "Upper and Lower", "whiteouts and opaque directories", "redirect_dir").

An upper directory has what somebody else chose, and so may a folder of the machine: all is opened by descriptors,
without links and on one mount.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper.comparing.stack import below, read_marks

READ = os.O_RDONLY | os.O_DIRECTORY
NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
NO_FD = -1


class Roots(NamedTuple):
    """Descriptors: of an upper directory (NO_FD: none), and of the machine's folder below it."""

    upper: int
    lower: int


class ShownEntry(NamedTuple):
    """Something that is shown. `folder`: a descriptor of the folder in which it is, valid until the next entry.

    `upper`, `lower`: of a folder, the paths of what is merged in it, below the roots; None: nothing there. `is_plain`:
    a folder of the upper directory that was made where the machine had one. `is_covered`: something is mounted on the
    way to `lower`. `is_gone`: the session has moved it there, and the machine has not got it any more. `is_lower`: it
    is the machine's own.
    """

    name: str
    folder: int
    facts: os.stat_result
    upper: str | None = None
    lower: str | None = None
    is_plain: bool = False
    is_covered: bool = False
    is_gone: bool = False
    is_lower: bool = False

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.facts.st_mode)

    @property
    def is_whiteout(self) -> bool:
        return stat.S_ISCHR(self.facts.st_mode) and self.facts.st_rdev == 0


@contextmanager
def opened(root: int, path: str, flags: int = READ) -> Iterator[int]:
    """A descriptor of `path` below `root`, for a `with` block. Raises OSError: EXDEV if another mount is on the way."""
    with beneath.opened(root, path, flags, across=False) as fd:
        yield fd


@contextmanager
def opened_machine(path: str) -> Iterator[int]:
    """A descriptor of a folder of the machine, for a `with` block. `path`: absolute, without links. Raises OSError."""
    with open_folder("/") as root, beneath.opened(root, path, READ) as fd:
        yield fd


def shown(roots: Roots, upper: str | None, lower: str | None) -> Iterator[ShownEntry]:
    """What is shown in the folder that is `upper` and `lower`, without what is removed; its folders as such. Raises
    OSError.
    """
    hidden: set[str] = set()
    with ExitStack() as held:
        if upper is not None:
            for entry in above(roots, held.enter_context(opened(roots.upper, upper)), upper, lower):
                if lower is not None:
                    hidden.add(entry.name)
                if not entry.is_whiteout:
                    yield entry
        if lower is not None:
            folder = held.enter_context(opened(roots.lower, lower))
            with os.scandir(folder) as found:
                for item in found:
                    if item.name not in hidden:
                        facts = item.stat(follow_symlinks=False)
                        path = below(lower, item.name) if stat.S_ISDIR(facts.st_mode) else None
                        yield ShownEntry(item.name, folder, facts, None, path, is_lower=True)


def above(roots: Roots, folder: int, upper: str, lower: str | None) -> Iterator[ShownEntry]:
    """The entries of an upper directory's folder, which is open as `folder`, whiteouts too. `lower`: the folder of the
    machine that is merged with it. Raises as `shown`.
    """
    with os.scandir(folder) as found:
        for item in found:
            facts = item.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                yield _folder(roots, ShownEntry(item.name, folder, facts, below(upper, item.name)), lower)
            else:
                yield ShownEntry(item.name, folder, facts)


def _folder(roots: Roots, entry: ShownEntry, lower: str | None) -> ShownEntry:
    """The entry of a folder, with what is merged in it."""
    marks = read_marks(entry.folder, entry.name)
    origin = marks.redirect
    if marks.is_opaque and not origin:
        return entry
    if origin.startswith("/"):
        path: str | None = origin.strip("/")
    else:
        path = below(lower, origin or entry.name) if lower is not None else None
    entry = entry._replace(is_plain=not origin)
    try:
        if path is not None and not _is_folder(roots.lower, path):
            return entry._replace(is_gone=bool(origin))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return entry._replace(is_covered=True)
    return entry._replace(lower=path)


def all_in(roots: Roots, folder: ShownEntry, at: str) -> Iterator[tuple[str, ShownEntry]]:
    """All that is shown in a folder, however deep, each with its path; a folder before what is in it. `at`: the path of
    the folder. Raises as `shown`.
    """
    waiting = [(folder.upper, folder.lower, at)]
    while waiting:
        upper, lower, at = waiting.pop()
        for entry in shown(roots, upper, lower):
            path = below(at, entry.name)
            yield path, entry
            if entry.is_folder:
                waiting.append((entry.upper, entry.lower, path))


def _is_folder(root: int, path: str) -> bool:
    try:
        with opened(root, path, os.O_PATH | os.O_DIRECTORY):
            return True
    except OSError as error:
        if error.errno not in NO_FOLDER:
            raise
        return False
