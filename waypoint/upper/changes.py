"""How much a session has changed: the files in its upper tree, counted."""

import os
from typing import NamedTuple

from waypoint.model.paths import RUN_FOLDER
from waypoint.upper import layout

MOST = 2000  # names that are looked at: some milliseconds


class Changes(NamedTuple):
    """`files`: files that the session has made, changed or removed. `are_more`: the tree has more than were counted."""

    files: int
    are_more: bool


def count_changes(tree: str, most: int = MOST) -> Changes:
    """Count the files in the upper tree at the path `tree`, without Waypoint's own. Folders do not count; a removed
    folder counts as one. Stops at `most` names. Raises OSError.
    """
    own = f"{layout.upper_of(tree)}/{RUN_FOLDER}"
    with os.scandir(tree) as mounts:
        folders = [f"{entry.path}/upper" for entry in mounts]
    seen = count = 0
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                seen += 1
                if seen > most:
                    return Changes(count, are_more=True)
                if not entry.is_dir(follow_symlinks=False):
                    count += 1
                elif entry.path != own:
                    folders.append(entry.path)
    return Changes(count, are_more=False)
