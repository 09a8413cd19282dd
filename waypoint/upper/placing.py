"""Placing new files in the upper tree of a session that has not started.

The content of the tree was written by an earlier session and may be hostile, so links are not followed.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Collection
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.paths import is_below
from waypoint.upper import layout
from waypoint.upper.changes import is_whiteout
from waypoint.upper.marks import OPAQUE, REDIRECT

_READ_FOLDER = os.O_RDONLY | os.O_DIRECTORY


class Where(NamedTuple):
    """The files of a session: the upper tree at the path `tree`, over the folder `base`. `overlays`: the mount points
    of its overlays.
    """

    tree: str
    overlays: Collection[str]
    base: str


class Occupied(Exception):
    """The path cannot be used; the text says why."""


class _Level(NamedTuple):
    """A folder of the session: descriptors of it in the upper directory, and in the lower one (-1: none)."""

    upper: int
    lower: int


def place(
    where: Where, path: str, owner: tuple[int, int], copy: Callable[[int, str], None], *, over_base: bool = False
) -> None:
    """Make `path`, an absolute path in the session that does not exist there, by calling `copy(fd, target)`: `target`
    is its path below /proc/self/fd/`fd`. Missing folders above it are made, and belong to `owner` (uid, gid).
    `over_base`: `path` may be a file of the base, which the new one hides. Raises Occupied.
    """
    target = max((one for one in where.overlays if is_below(path, one)), key=len)
    *above, last = os.path.relpath(path, target).split("/")
    with contextlib.ExitStack() as held:
        upper = held.enter_context(open_folder(layout.upper_of(where.tree, target)))
        level = _Level(upper, _opened_base(held, f"{where.base.rstrip('/')}{target}"))
        for name in above:
            level = _enter(held, level, name, owner)
        in_upper, in_lower = _look(level.upper, last), _look(level.lower, last)
        is_removed = in_upper is not None and is_whiteout(in_upper)
        is_hidden = in_lower is None or (over_base and stat.S_ISREG(in_lower.st_mode))
        if (in_upper is not None and not is_removed) or (in_upper is None and not is_hidden):
            raise Occupied("it exists in the session")
        if is_removed:
            os.unlink(last, dir_fd=level.upper)
        copy(level.upper, f"{beneath.name_of(level.upper)}/{last}")
        if is_removed and stat.S_ISDIR(os.stat(last, dir_fd=level.upper, follow_symlinks=False).st_mode):
            with beneath.opened(level.upper, last, _READ_FOLDER) as made:
                os.setxattr(made, OPAQUE, b"y")


def _enter(held: contextlib.ExitStack, level: _Level, name: str, owner: tuple[int, int]) -> _Level:
    """The folder `name` in the folder `level`, made if it is missing."""
    in_upper, in_lower = _look(level.upper, name), _look(level.lower, name)
    is_removed = in_upper is not None and is_whiteout(in_upper)
    if is_removed:
        os.unlink(name, dir_fd=level.upper)
    if in_upper is None or is_removed:
        seen = None if is_removed else in_lower
        if seen is not None and not stat.S_ISDIR(seen.st_mode):
            raise Occupied(f"{name} in it is a link or a file")
        os.mkdir(name, 0o700, dir_fd=level.upper)
        upper = held.enter_context(beneath.opened(level.upper, name, _READ_FOLDER))
        os.fchown(upper, *((seen.st_uid, seen.st_gid) if seen is not None else owner))
        os.fchmod(upper, stat.S_IMODE(seen.st_mode) if seen is not None else 0o755)
        if is_removed:
            os.setxattr(upper, OPAQUE, b"y")
        return _Level(upper, -1 if seen is None else _opened(held, level.lower, name))
    if not stat.S_ISDIR(in_upper.st_mode):
        raise Occupied(f"{name} in it is a link or a file")
    upper = held.enter_context(beneath.opened(level.upper, name, _READ_FOLDER))
    marks = set(os.listxattr(upper))
    if REDIRECT in marks:
        raise Occupied(f"{name} in it was renamed in the session")
    shows_lower = OPAQUE not in marks and in_lower is not None and stat.S_ISDIR(in_lower.st_mode)
    return _Level(upper, _opened(held, level.lower, name) if shows_lower else -1)


def _opened(held: contextlib.ExitStack, folder: int, name: str) -> int:
    return held.enter_context(beneath.opened(folder, name, _READ_FOLDER))


def _opened_base(held: contextlib.ExitStack, folder: str) -> int:
    """A descriptor of the folder of the base; -1: it was a mount that is gone."""
    try:
        return held.enter_context(open_folder(folder))
    except (FileNotFoundError, NotADirectoryError):
        return -1


def _look(folder: int, name: str) -> os.stat_result | None:
    if folder == -1:
        return None
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
