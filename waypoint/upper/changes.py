"""What a session has changed: the files in its upper tree, counted, and looked for at a place."""

import contextlib
import errno
import os
from enum import Enum, auto
from typing import NamedTuple

from waypoint.linux.calls import powers
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.paths import RUN_FOLDER
from waypoint.upper import layout

_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # a running session has removed or replaced a folder
MOST = 2000  # names that are looked at: some milliseconds


class Changes(NamedTuple):
    """`files`: files that the session has made, changed or removed. `are_more`: the tree has more than were counted."""

    files: int
    are_more: bool


def count_changes(tree: str) -> Changes:
    """Count the files in the upper tree at the path `tree`, without Waypoint's own. Folders do not count; a removed
    folder counts as one. Stops at MOST names. Raises OSError.
    """
    own = f"{layout.ROOT_FOLDER}/upper/{RUN_FOLDER}"
    folders = [f"{name}/upper" for name in os.listdir(tree)]
    seen = count = 0
    with open_folder(tree) as root:
        while folders:
            above = folders.pop()
            try:
                found = beneath.opened(root, above, os.O_RDONLY | os.O_DIRECTORY)
                with found as folder, os.scandir(folder) as entries:
                    for entry in entries:
                        seen += 1
                        if seen > MOST:
                            return Changes(count, are_more=True)
                        if not entry.is_dir(follow_symlinks=False):
                            count += 1
                        elif (path := f"{above}/{entry.name}") != own:
                            folders.append(path)
            except OSError as error:
                if error.errno not in _REPLACED:
                    raise
    return Changes(count, are_more=False)


def changed_targets(tree: str) -> set[str]:
    """The mount points, as the session sees them, of the mounts that the tree at the path `tree` has changes in."""
    with os.scandir(tree) as mounts:
        targets = {layout.target_of(entry.name) for entry in mounts}
    return {target for target in targets if has_entries(layout.upper_of(tree, target))}


def has_entries(folder: str | int) -> bool:
    """Whether anything is in `folder`, a path or a descriptor. False if it is missing."""
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except FileNotFoundError:
        return False


class InPlace(Enum):
    """What an upper directory has in the place of a mount. NOTHING: nothing of its own, or an empty folder. FILES: a
    folder with something in it. ELSE: something that is no folder, or a removed one: nothing can be mounted there.
    """

    NOTHING = auto()
    FILES = auto()
    ELSE = auto()


def look_at(upper: str, place: str) -> InPlace:
    """What the upper directory has at `place`, a path below it. No link on the way is followed, and none that is put
    there meanwhile. Raises OSError.
    """
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


def stands_alone(folder: str | int) -> bool:
    """True if the folder of an upper directory, a path or a descriptor, hides the base's folder at its path (opaque) or
    shows another one (redirect).
    """
    marks = {powers.overlay_mark("opaque"), powers.overlay_mark("redirect")}
    return bool(marks & set(os.listxattr(folder, follow_symlinks=isinstance(folder, int))))
