"""Captures whose files are mounted for people on the machine ('waypoint mount'): known by the source of the mount, so
that nothing has to be noted, and nothing is left behind when it is unmounted.
"""

from collections.abc import Iterable
from typing import NamedTuple

from waypoint.linux.storage.mounts import MountRecord

_MARK = "waypoint"


def source_of(home: str, capture: str) -> str:
    """What mountinfo tells as the source of a mount of the capture's files. `home`: the id of the home."""
    return f"{_MARK}:{home}:{capture}"


def is_shown(mount: MountRecord) -> bool:
    """Whether the mount shows the files of a capture, of any home."""
    return mount.fstype == "overlay" and mount.source.startswith(f"{_MARK}:")


class ShownCapture(NamedTuple):
    """The files of `capture`, of the home with the id `home`, are mounted at `point`."""

    home: str
    capture: str
    point: str


def all_shown(table: Iterable[MountRecord]) -> list[ShownCapture]:
    """The captures of all homes that are mounted, each where it is seen first."""
    found: dict[tuple[str, str], str] = {}
    for mount in filter(is_shown, table):
        _, home, capture = mount.source.split(":", 2) if mount.source.count(":") > 1 else ("", "", mount.source)
        found.setdefault((home, capture), mount.mount_point)
    return [ShownCapture(*which, point) for which, point in found.items()]


def shown_in(table: Iterable[MountRecord], home: str) -> dict[str, str]:
    """By id of the captures of a home that are mounted: where, by the mounts of the machine in `table`."""
    return {one.capture: one.point for one in all_shown(table) if one.home == home}
