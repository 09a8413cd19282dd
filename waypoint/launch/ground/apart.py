"""The machine as the base of a session of an ordinary user's daemon, which overlayfs does not take as a whole.

The kernel lets nobody but the machine's root have an overlay over a folder below which something is mounted: what the
mount hides could be seen. So such a folder is taken apart. It becomes a *stand-in*, a folder of the kit with the same
names in it: links and small files are copies; each folder gets an overlay of its own, or is taken apart as well.

And overlayfs cannot copy a folder of somebody else's into the upper, as there is no such id. So the folders that lead
to what the user may write, and those of others that everybody may write to, are in the kit, too, as the user's own: the
*ways*.
"""

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.launch.ground.base import OWN_PLACES, BasePlan, is_below
from waypoint.linux.calls import powers

MOST_OVERLAYS = 128
"""More would make each start slow."""


class Apart(NamedTuple):
    """What the kit must have besides: `stand_ins`, the mount points of overlays; `ways`, folders."""

    stand_ins: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()


WHOLE = Apart()
"""A base that need not be taken apart."""


def take_apart(plan: BasePlan, points: Iterable[str]) -> BasePlan:
    """The plan of a session on the machine with as many overlays as it takes. `points`: where something is mounted."""
    taking = _Taking(frozenset(points), frozenset(plan.overlays))
    for target in plan.overlays:
        taking.add(target)
    left_out = [*plan.left_out, *(f"{one} (too many folders beside what is mounted)" for one in taking.left)]
    overlays, stand_ins = sorted(taking.overlays), tuple(sorted(taking.stand_ins))
    return plan._replace(overlays=overlays, left_out=left_out, stand_ins=stand_ins)


def needs_of(plan: BasePlan, base: str, wanted: Iterable[str]) -> Apart:
    """What a session on `base` by `plan` needs in the kit. `wanted`: folders that its user is to write to."""
    if powers.is_machines() or base != "/":
        return WHOLE
    return Apart(plan.stand_ins, find_ways(plan.overlays, wanted))


class _Taking:
    def __init__(self, points: frozenset[str], planned: frozenset[str]) -> None:
        self._points, self._planned = points, planned
        self.overlays: set[str] = set()
        self.stand_ins: set[str] = set()
        self.left: list[str] = []

    def add(self, place: str) -> None:
        self.overlays.add(place)
        if not any(point != place and is_below(point, place) for point in self._points):
            return
        self.stand_ins.add(place)
        for below in _folders(place):
            is_elsewhere = below in OWN_PLACES or below in self._planned or below in self._points
            if is_elsewhere or not os.access(below, os.R_OK | os.X_OK):
                continue
            if len(self.overlays) < MOST_OVERLAYS:
                self.add(below)
            else:
                self.left.append(below)


def find_ways(overlays: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """The folders of others on the way to `wanted`, and to what the caller may write to of what lies right below the
    root of an overlay.
    """
    tops = sorted(overlays)
    found: set[str] = set()
    for target in (*wanted, *_writable(tops)):
        path = os.path.realpath(target)
        if not os.path.isdir(path):
            continue
        top = max((one for one in tops if is_below(path, one)), key=len, default="/")
        while path not in (top, "/"):
            if os.stat(path).st_uid != os.geteuid():
                found.add(path)
            path = os.path.dirname(path)
    return tuple(sorted(found))


def _writable(tops: Iterable[str]) -> Iterator[str]:
    for top in tops:
        if not os.access(top, os.W_OK):
            yield from (below for below in _folders(top) if os.access(below, os.W_OK))


def _folders(place: str) -> list[str]:
    try:
        with os.scandir(place) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # not to be read
        return []
