"""The events of a home: the last ones are kept in memory, and any number of clients read them.

Publishing waits for nobody: an event is put into a ring, where each reader has a place. A reader that is slower than
the ring is long finds its place gone, and is told how many events it has lost.
"""

import asyncio
import collections
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncGenerator

import msgspec

from waypoint.model.activity import BeginEvent, Event, EventsQuery, LostEvent, OperationEvent, RestartedEvent
from waypoint.model.ids import random_hex
from waypoint.model.names import in_order
from waypoint.model.records import Operation
from waypoint.model.times import iso_time

# How many events are kept.
KEPT = 1024
# How many a reader takes at once.
PIECE_EVENTS = 64


class Events:
    """The events of one daemon. `instance`: the daemon's id, which tells its sequence numbers from those of other
    daemons.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: the event loop that the readers run in."""
        self.instance = random_hex(8)
        self.loop = loop
        self._lines: collections.deque[bytes] = collections.deque(maxlen=KEPT)
        self._seq = 0  # the number of the last event
        self._lock = threading.Lock()
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_waking = False

    def publish(self, kind: type[Event], **facts: object) -> None:
        """Add an event of this kind; `facts`: the fields that only this kind has. Any thread may call this, and waits
        for nothing but other calls.
        """
        with self._lock:
            self._seq += 1
            self._lines.append(self._line(kind, self._seq, facts))
            must_wake = bool(self._waiting) and not self._is_waking
            self._is_waking = self._is_waking or must_wake
        if must_wake:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its readers gone
                self.loop.call_soon_threadsafe(self._wake)

    def tell_operation(self, operation: Operation) -> None:
        """Publish the event that the operation log has a new entry."""
        names = sorted({*operation.moves, *operation.sessions}, key=in_order)
        self.publish(OperationEvent, number=operation.number, verb=operation.verb, names=names)

    async def lines(self, query: EventsQuery) -> AsyncGenerator[bytes, None]:
        """Yield whole lines of JSON: a `begin`, the events that `query` asks for, and with `follow` all that come."""
        seq = query.after
        is_other = query.instance not in (None, self.instance) or seq > self._seq
        with self._lock:
            first = self._line(RestartedEvent if is_other else BeginEvent, self._seq, {})
        yield first
        seq = 0 if is_other else seq
        while True:
            piece, seq = self._take(seq)
            if piece:
                yield piece
            elif query.follow:
                await self._more(seq)
            else:
                return

    def _take(self, seq: int) -> tuple[bytes, int]:
        """Some of the lines after the event `seq`, and which event is the last of them."""
        with self._lock:
            before = self._seq - len(self._lines)  # the newest that was dropped
            lost = before - seq
            if lost > 0:
                return self._line(LostEvent, before, {"count": lost}), before
            lines = list(itertools.islice(self._lines, seq - before, seq - before + PIECE_EVENTS))
        return b"".join(lines), seq + len(lines)

    async def _more(self, seq: int) -> None:
        """Wait until there is an event after `seq`."""
        more = self.loop.create_future()
        with self._lock:
            if self._seq > seq:
                return
            self._waiting.add(more)
        try:
            await more
        finally:
            self._waiting.discard(more)

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, set()
            self._is_waking = False
        for more in waiting:
            if not more.done():
                more.set_result(None)

    def _line(self, kind: type[Event], seq: int, facts: dict[str, object]) -> bytes:
        event = kind(seq=seq, instance=self.instance, at=iso_time(time.time()), **facts)
        return msgspec.json.encode(event) + b"\n"
