"""The graph of captures: who goes on from whom."""

import heapq
import itertools
from collections.abc import Iterable

from waypoint.model.records import Capture
from waypoint.store.names import Names


def walk_back(names: Names, tips: Iterable[Capture], limit: int | None = None) -> list[Capture]:
    """The captures that `tips` go on from, themselves included, the newest first; a child never behind its parent."""
    found: list[Capture] = []
    seen: set[str] = set()
    waiting = [(-capture.created, number, capture) for number, capture in enumerate(tips)]
    heapq.heapify(waiting)
    numbers = itertools.count(len(waiting))  # captures themselves cannot be compared
    while waiting and (limit is None or len(found) < limit):
        _, _, capture = heapq.heappop(waiting)
        if capture.id in seen:
            continue
        seen.add(capture.id)
        found.append(capture)
        for parent in (names.capture(parent) for parent in capture.parents if parent not in seen):
            heapq.heappush(waiting, (-parent.created, next(numbers), parent))
    return found
