"""The graph of captures: walks from captures to their parents."""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from waypoint.model.records import NO_BASE, Capture
from waypoint.records.reading import PIECE, Link, Reader

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


def walk_all(names: Reader) -> Iterator[list[str]]:
    """The ids of all captures of sessions, the newest first, children before parents: also where a child has an earlier
    time than its parent, because the clock was set back. Parents without a record are left out.

    Yields lists of at most PIECE ids. The first lists are empty, one for each piece of links read: all links must be
    read before the first id is known.
    """
    links: dict[str, Link] = {}
    children = Counter[str]()  # for each capture, how many of its children are still to come
    for piece in names.iter_links():
        links.update((link.id, link) for link in piece if link.base != NO_BASE)
        children.update(parent for link in piece for parent in link.parents)
        yield []
    yield from in_pieces(_in_order(links, children))


def _in_order(links: Mapping[str, Link], children: Counter[str]) -> Iterator[str]:
    ready = [(-link.created, link.id) for link in links.values() if not children[link.id]]
    heapq.heapify(ready)
    while ready:
        _, capture_id = heapq.heappop(ready)
        yield capture_id
        for parent in links[capture_id].parents:
            children[parent] -= 1
            if not children[parent] and parent in links:
                heapq.heappush(ready, (-links[parent].created, parent))


def in_pieces(items: Iterable[Item]) -> Iterator[list[Item]]:
    """`items` as lists of at most PIECE."""
    left = iter(items)
    while piece := list(itertools.islice(left, PIECE)):
        yield piece


def limited(pieces: Iterable[list[Item]], limit: int | None) -> Iterator[list[Item]]:
    """The pieces up to `limit` items in all (None: all)."""
    for piece in pieces:
        if limit is not None:
            piece, limit = piece[:limit], limit - len(piece)
        yield piece
        if limit is not None and limit <= 0:
            return
