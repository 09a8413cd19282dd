"""Whether there is anything at a path, for what a user has chosen: found without walking."""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack

from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.upper import layout
from waypoint.upper.changes import changed_targets
from waypoint.upper.comparing.stack import OWN, read_marks

_READ = os.O_RDONLY | os.O_DIRECTORY


def has_entry(upper: str, path: str) -> bool:
    """Whether the upper directory at the path `upper` has something at the relative `path`: what the session has
    changed, made or removed. What is in a folder that it has moved is not looked for, and counts. Raises OSError.
    """
    with ExitStack() as held:
        folder = held.enter_context(open_folder(upper))
        parts = [part for part in path.split("/") if part]
        for count, part in enumerate(parts, 1):
            try:
                facts = os.stat(part, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
            if count == len(parts):
                return True
            if not stat.S_ISDIR(facts.st_mode):
                return False
            if read_marks(folder, part).redirect:
                return True
            folder = held.enter_context(beneath.opened(folder, part, _READ, across=False))
    return True


def is_in_base(base: str, path: str) -> bool:
    """Whether the base has something at the absolute `path`, if only a link that leads nowhere. Links on the way are
    followed as by a process whose root is the base. What cannot be looked at counts as there.
    """
    try:
        with open_folder(base) as root:
            os.close(beneath.open_in_root(root, path, os.O_PATH | os.O_NOFOLLOW))
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    return True


def is_nowhere(path: str, trees: Iterable[str], base: str, skipped: Iterable[str]) -> bool:
    """Whether neither one of the upper trees nor the base has something at the absolute `path`. What a running session
    replaces just now counts as there, and so does what is no part of the base: below OWN, or one of `skipped`.
    """
    if any(_is_at(path, one) for one in (*skipped, *(f"/{own}" for own in OWN))) or is_in_base(base, path):
        return False
    try:
        return not any(
            has_entry(layout.upper_of(tree, target), path[len(target) :])
            for tree in trees
            for target in changed_targets(tree)
            if _is_at(path, target)
        )
    except OSError:
        return False


def _is_at(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
