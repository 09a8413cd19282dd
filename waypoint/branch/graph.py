"""The graph of captures: who goes on from whom."""

from collections.abc import Iterable

from waypoint.model.records import Capture
from waypoint.store.names import Names


def walk_back(names: Names, tips: Iterable[Capture], limit: int | None = None) -> list[Capture]:
    """The captures that `tips` go on from, themselves included, the newest first; a child never behind its parent."""
    found: list[Capture] = []
    seen: set[str] = set()
    waiting = list(tips)
    while waiting and (limit is None or len(found) < limit):
        waiting.sort(key=lambda capture: capture.created)
        capture = waiting.pop()
        if capture.id in seen:
            continue
        seen.add(capture.id)
        found.append(capture)
        waiting += [names.capture(parent) for parent in capture.parents if parent not in seen]
    return found
