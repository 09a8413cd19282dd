"""The names of the files that an upper tree has changed. Nothing is read but folders."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping

from waypoint.linux.storage import beneath
from waypoint.upper import layout

_SKIPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.EACCES, errno.EPERM)
"""Errors of a folder that was removed or replaced meanwhile, or that the calling thread may not read."""


def changed_names(tree: int, targets: Mapping[str, Callable[[str], bool]]) -> Iterator[str]:
    """The paths in the session of all files that were made, changed or removed, and of removed folders; "" for each
    folder. The tree, an open folder, may change meanwhile. Follows no links.

    `targets`: the mount points to look in, each with whether a path, relative to it, is wanted.
    """
    for target, is_wanted in targets.items():
        upper, above = layout.upper_of("", target).lstrip("/"), target.rstrip("/")
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for name, is_folder in _entries(tree, f"{upper}/{folder}"):
                path = f"{folder}{name}"
                if not is_wanted(path):
                    continue
                if is_folder:
                    waiting.append(f"{path}/")
                yield "" if is_folder else f"{above}/{path}"


def _entries(tree: int, folder: str) -> list[tuple[str, bool]]:
    try:
        with beneath.opened(tree, folder, os.O_RDONLY | os.O_DIRECTORY) as opened, os.scandir(opened) as entries:
            return [(one.name, one.is_dir(follow_symlinks=False)) for one in entries]
    except OSError as error:
        if error.errno not in _SKIPPED:
            raise
        return []
