"""The graph of captures: walks from captures to their parents."""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from waypoint.model.records import Capture
from waypoint.store.reading import PIECE, Link, Reader

Item = TypeVar("Item")


def walk_back(names: Reader, tips: Iterable[Capture]) -> Iterator[Capture]:
    """The captures `tips` and all their ancestors, the newest first, children before parents.

    A capture is read when the caller asks for it. The walk ends at captures whose records a `gc` removes meanwhile.
    """
    seen: set[str] = set()
    waiting = [(-capture.created, number, capture) for number, capture in enumerate(tips)]
    heapq.heapify(waiting)
    numbers = itertools.count(len(waiting))  # captures themselves cannot be compared
    while waiting:
        _, _, capture = heapq.heappop(waiting)
        if capture.id in seen:
            continue
        seen.add(capture.id)
        yield capture
        for parent in names.parents_of(capture, seen):
            heapq.heappush(waiting, (-parent.created, next(numbers), parent))


def walk_all(names: Reader) -> Iterator[str]:
    """The ids of all captures, the newest first, children before parents: also where a child has an earlier time than
    its parent, because the clock was set back.

    So the first step reads the links of all captures. Parents without a record are left out.
    """
    links: dict[str, Link] = {}
    children = Counter[str]()  # for each capture, how many of its children are still to come
    for piece in names.iter_links():
        links.update((link.id, link) for link in piece)
        children.update(parent for link in piece for parent in link.parents)
    ready = [(-link.created, link.id) for link in links.values() if not children[link.id]]
    heapq.heapify(ready)
    while ready:
        _, capture_id = heapq.heappop(ready)
        yield capture_id
        for parent in links[capture_id].parents:
            children[parent] -= 1
            if not children[parent] and parent in links:
                heapq.heappush(ready, (-links[parent].created, parent))


def in_pieces(items: Iterable[Item], limit: int | None = None) -> Iterator[list[Item]]:
    """The first `limit` of `items` (None: all) as lists of at most PIECE."""
    left = itertools.islice(items, limit)
    while piece := list(itertools.islice(left, PIECE)):
        yield piece
