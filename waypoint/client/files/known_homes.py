"""The homes of Waypoint that are not copied with the folders they lie in: what is copied may go into one of them, and
would never end.
"""

import contextlib
import glob
import os

from waypoint.client.address import own_home
from waypoint.model.paths import RUNTIME, SYSTEM_HOME
from waypoint.parcel.parcel_records import Inode


def known_homes(home: str) -> frozenset[Inode]:
    """Device and inode of `home`, of the machine's home, of this user's own and, for root, of those of which a daemon
    has run since the machine was started.
    """
    places = {home, SYSTEM_HOME, own_home()}
    for note in glob.glob(f"{RUNTIME}/*/home"):
        with contextlib.suppress(OSError), open(note, "rb") as file:
            places.add(os.fsdecode(file.read()))
    return frozenset(filter(None, map(_inode, places)))


def holds(homes: frozenset[Inode], path: str) -> bool:
    """Whether `path` is one of the homes, or lies in one."""
    place = os.path.realpath(path)
    while _inode(place) not in homes:
        if place == os.path.dirname(place):
            return False
        place = os.path.dirname(place)
    return True


def _inode(path: str) -> Inode | None:
    with contextlib.suppress(OSError, ValueError):
        facts = os.stat(path)
        return facts.st_dev, facts.st_ino
    return None
