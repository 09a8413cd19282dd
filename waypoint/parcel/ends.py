"""Where a copy begins and where it goes, by the paths that were given: as with cp(1) and docker cp."""

import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from waypoint.parcel.parcel_records import BadParcel, ParcelItem

Opener = Callable[[str], int]
"""From a path to a descriptor of the folder there, links followed as whoever named it sees them. Raises OSError."""
_NO_NAMES = ("", ".", "..")


class Pickup(NamedTuple):
    """What is copied: `name` in the folder behind the descriptor `folder`, for the caller to close; "": what is behind
    that descriptor, a file or folder. `called`: its name for the copy; "": it has none, or it is all that is in it.
    """

    folder: int
    name: str
    called: str


class Landing(NamedTuple):
    """Where a copy goes: to `name` in the folder behind the descriptor `folder`, for the caller to close. `.`: it is
    that folder.
    """

    folder: int
    name: str


def take_up(opener: Opener, path: str) -> Pickup:
    """What is meant by `path`: a link itself, unless the path ends in a slash; all that is in a folder if it ends in
    `/.`. Raises OSError.
    """
    plain = path.rstrip("/")
    above, _, name = plain.rpartition("/")
    if name in _NO_NAMES:
        return Pickup(opener(path or "."), ".", "")
    if plain != path:
        return Pickup(opener(path), ".", name)
    return Pickup(opener(_above(above, plain)), name, name)


def land(opener: Opener, path: str, entry: ParcelItem) -> Landing:
    """Where `entry` goes that is copied to `path`: into that if it is a folder; all of it, if the entry has no name.
    Else `path` is its new name. Raises OSError.
    """
    plain = path.rstrip("/")
    try:
        folder = opener(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        if plain != path and entry.kind != "folder":
            raise
    else:
        return Landing(folder, entry.name or ".")
    above, _, name = plain.rpartition("/")
    if name in _NO_NAMES:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return Landing(opener(_above(above, plain)), name)


def land_at(folder: int, name: str) -> Callable[[ParcelItem], Landing]:
    """What finds the place of a file or folder that goes to `name` in the folder behind the descriptor `folder`, which
    stays the caller's. It raises BadParcel for a link.
    """

    def lands(entry: ParcelItem) -> Landing:
        if entry.kind not in ("file", "folder"):
            raise BadParcel("it is neither a file nor a folder")
        return Landing(os.dup(folder), name)

    return lands


def _above(above: str, plain: str) -> str:
    return above or ("/" if plain.startswith("/") else ".")
