"""The space of captures that only the undo of operations needs.

A capture without a name is kept for some days, because undoing an operation needs it (branch/removal.py). What such
captures take is bounded by the home's `undo_budget_bytes`: beyond it, the oldest operations can no longer be undone.
Before that, such captures are stored as images, which have unchanged memory and files only once, and evicted; those of
the last operations stay outside of the store, so that their undo is fast.
"""

import time
from collections.abc import Iterator

from waypoint.branch.removal import Survey
from waypoint.model.records import Capture
from waypoint.service.home import Home, UndoMeasured
from waypoint.service.usage import MEASURE_S, stored_bytes
from waypoint.upper.contract import Shares

LEAST_HOT_BYTES = 32 << 20
"""What a `gc` leaves outside of the store of captures that only undo needs: less is not worth the time."""
MOST_HOT_BYTES = 256 << 20
_HOT_SHARE = 4
_SPARE_SHARE = 10
_MEASURE_AGAIN_S = 600.0
"""Captures may lose their names meanwhile, which no size shows."""


def hot_limit(budget: int) -> int:
    """What captures that only undo needs may take outside of the store before the oldest are stored and evicted."""
    return min(MOST_HOT_BYTES, budget // _HOT_SHARE)


class UndoSpace:
    """The space of the captures that only undo needs, or nothing, at the time of a survey. Blocks."""

    def __init__(self, home: Home, found: Survey) -> None:
        self._home = home
        self._found = found
        self._sizes = home.captures.copy_sizes()
        only = found.only_undo()
        self._only = list(home.names.captures_of(only, may_lack=True).values())
        self._copies_bytes = sum(self._sizes.get(one, 0) for one in [*only, *found.removable])
        self._most_bytes = self._copies_bytes + home.pool.unique_bytes() + stored_bytes(home)

    def exceeds(self, limit: int) -> bool:
        """Whether they take more than `limit` outside of the store, their files not counted."""
        return self._copies_bytes > limit

    def beyond(self, limit: int) -> list[Capture]:
        """The captures to be stored and evicted so that the others take at most `limit` outside of the store. The
        oldest first. Files do not count.
        """
        total, found = 0, list[Capture]()
        for capture in self._only:
            total += self._sizes.get(capture.id, 0)
            if total > limit and self._home.captures.images.is_hot(capture):
                found.append(capture)
        return sorted(found, key=lambda capture: capture.created)

    def may_exceed(self, budget: int) -> bool:
        """Whether they may take more than `budget`. An exact measurement is repeated only if what has been added since
        could change its result.
        """
        last = self._home.undo_measured
        if not self._only or self._most_bytes <= budget or last is None:
            return bool(self._only) and self._most_bytes > budget
        is_old = time.monotonic() > last.at + _MEASURE_AGAIN_S
        return is_old or last.found_bytes + self._most_bytes - last.most_bytes > budget

    def first_to_keep(self, budget: int) -> int:
        """The number of the first operation that can still be undone if these captures are to take at most `budget`,
        with some to spare; 0 if they do not take more.
        """
        if not self.may_exceed(budget):
            return 0
        sizes = [sum(one) for one in self._measure()]
        self._home.undo_measured = UndoMeasured(time.monotonic(), self._most_bytes, sum(sizes))
        if sum(sizes) <= budget:
            return 0
        left = budget - budget // _SPARE_SHARE
        for capture, size in zip(self._only, sizes, strict=True):
            left -= size
            if left < 0:
                return self._found.last_undo[capture.id] + 1
        return 0

    def _measure(self) -> Iterator[tuple[int, int, int]]:
        """Of each capture, the bytes of its memory and terminal outside of the store, of its own files outside of the
        store, and of what the store has for it and for no capture that is kept for another reason or longer.
        """
        home = self._home
        images, only = home.names.images(), {capture.id for capture in self._only}
        others = sorted({image for one, image in images.items() if one not in only})
        stored = [images[capture.id] for capture in self._only if capture.id in images]
        added = iter(home.captures.images.sizes([*others, *stored])[len(others) :] if stored else [])
        usage = home.captures.usage(self._only, MEASURE_S)
        for capture in self._only:
            files = usage.files_of(capture)
            own = files.own_bytes if isinstance(files, Shares) else 0
            yield self._sizes.get(capture.id, 0), own, next(added) if capture.id in images else 0
