"""Inspecting an upper tree: how many files a session has changed, and whether any lie at a mount point."""

import contextlib
import errno
import os
import stat
from collections import Counter
from enum import Enum, auto
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.storage.filesystem import WHITEOUT_DEVICE
from waypoint.model.paths import RUN_FOLDER
from waypoint.upper import layout
from waypoint.upper.marks import FORMER, OPAQUE, REDIRECT

_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # raised when a running session removes or replaces a folder
MOST_FOLDERS = 3
MOST = 2000  # names that are counted: some milliseconds


class Changes(NamedTuple):
    """`files`: files that the session has made, changed or removed. `are_more`: counting stopped at MOST names.
    `folders`: the folders with most of them, at most MOST_FOLDERS: the first two levels of their paths.
    """

    files: int
    are_more: bool
    folders: tuple[str, ...] = ()


def count_changes(tree: str) -> Changes:
    """Count the files in the upper tree, without Waypoint's own. A folder counts only if it was removed."""
    own = f"{layout.ROOT_FOLDER}/upper/{RUN_FOLDER}"
    folders = [f"{name}/upper" for name in os.listdir(tree)]
    found_in = Counter[str]()
    seen = 0
    with open_folder(tree) as root:
        while folders:
            above = folders.pop()
            try:
                found = beneath.opened(root, above, os.O_RDONLY | os.O_DIRECTORY)
                with found as folder, os.scandir(folder) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > MOST:
                            return _changes(found_in, are_more=True)
                        if not entry.is_dir(follow_symlinks=False):
                            found_in[_shown_folder(above)] += 1
                        elif (path := f"{above}/{entry.name}") != own:
                            folders.append(path)
            except OSError as error:
                if error.errno not in _REPLACED:
                    raise
    return _changes(found_in, are_more=False)


def _changes(found_in: Counter[str], *, are_more: bool) -> Changes:
    most = tuple(sorted(folder for folder, _ in found_in.most_common(MOST_FOLDERS)))
    return Changes(found_in.total(), are_more, most)


def _shown_folder(above: str) -> str:
    """The first two levels of the folder in the session, of the path `above` in the upper tree."""
    mount, _, below = above.removesuffix("/").partition("/upper")
    path = f"{layout.target_of(mount).rstrip('/')}{below}"
    return "/".join(path.split("/")[:3]) or "/"


def changed_targets(tree: str) -> set[str]:
    """The mount points in the session of the mounts for which the tree at the path `tree` has changes."""
    with os.scandir(tree) as mounts:
        targets = {layout.target_of(entry.name) for entry in mounts}
    return {target for target in targets if has_entries(layout.upper_of(tree, target))}


def has_entries(folder: str | int) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except FileNotFoundError:
        return False


class InPlace(Enum):
    """The content of an upper directory at a mount point. NOTHING: no entry, or an empty folder. FILES: a folder that
    is not empty. ELSE: a file or the mark of a removed folder, so nothing can be mounted there.
    """

    NOTHING = auto()
    FILES = auto()
    ELSE = auto()


def look_at(upper: str, place: str) -> InPlace:
    """Inspect the upper directory at `place`, a path below it. Follows no link, even if one appears meanwhile."""
    hides_base = False
    with contextlib.ExitStack() as held:
        folder = -1
        for name in ("", *place.split("/")):
            try:
                found = beneath.opened(folder, name, os.O_RDONLY | os.O_DIRECTORY) if name else open_folder(upper)
                folder = held.enter_context(found)
            except FileNotFoundError:
                return InPlace.ELSE if hides_base else InPlace.NOTHING
            except OSError as error:
                if error.errno not in _REPLACED:
                    raise
                return InPlace.ELSE
            hides_base = hides_base or (name != "" and stands_alone(folder))
        return InPlace.FILES if has_entries(folder) else InPlace.NOTHING


def is_whiteout(facts: os.stat_result) -> bool:
    """Whether a file of an upper directory marks a file of the base as removed."""
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == WHITEOUT_DEVICE


def stands_alone(folder: str | int) -> bool:
    """Whether a folder of an upper directory hides the base's folder (opaque) or shows another one (redirect)."""
    return bool({OPAQUE, REDIRECT} & set(os.listxattr(folder, follow_symlinks=isinstance(folder, int))))


def mark_former(fd: int) -> None:
    """Mark an open file or upper directory: a restore has placed the file there because the machine has another version
    now, and it is no change of the session's. The value of the mark tells whether the file has been changed since.
    """
    os.setxattr(fd, FORMER, _identity(os.fstat(fd)))


def has_former(upper: int) -> bool:
    """Whether the open upper directory may have files that are marked."""
    return FORMER in os.listxattr(upper)


def is_former(folder: int, name: str) -> bool:
    """Whether the file `name` in the open folder is marked, and has not been changed since."""
    try:
        found = os.getxattr(f"{beneath.name_of(folder)}/{name}", FORMER, follow_symlinks=False)
    except OSError:  # it has no mark
        return False
    return found == _identity(os.stat(name, dir_fd=folder, follow_symlinks=False))


def _identity(facts: os.stat_result) -> bytes:
    return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_mode} {facts.st_uid} {facts.st_gid}".encode()
