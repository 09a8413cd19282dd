"""The events of a home, kept in a ring in memory for any number of readers.

Publishing never waits. A reader that falls behind by more than the ring's length gets a `lost` event with the number of
events that it has missed.
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

KEPT = 1024  # events in the ring
PIECE_EVENTS = 64  # events that a reader takes at once


class Events:
    """The events of one daemon. `instance`: the daemon's id; sequence numbers are its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.instance = random_hex(8)
        self._loop = loop
        self._lines: collections.deque[bytes] = collections.deque(maxlen=KEPT)
        self._seq = 0  # the number of the last event
        self._lock = threading.Lock()
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_waking = False

    def publish(self, kind: type[Event], **facts: object) -> None:
        """Add an event of this kind with the fields `facts`. Any thread may call this."""
        with self._lock:
            self._seq += 1
            self._lines.append(self._line(kind, self._seq, facts))
            must_wake = bool(self._waiting) and not self._is_waking
            self._is_waking = self._is_waking or must_wake
        if must_wake:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake)

    def tell_operation(self, operation: Operation) -> None:
        names = sorted({*operation.moves, *operation.sessions}, key=in_order)
        self.publish(OperationEvent, number=operation.number, verb=operation.verb, names=names)

    async def lines(self, query: EventsQuery) -> AsyncGenerator[bytes, None]:
        """Yield lines of JSON: `begin` or `restarted`, the events asked for, and with `follow` all later ones."""
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
        """Up to PIECE_EVENTS lines after the event `seq`, and the number of the last one."""
        with self._lock:
            before = self._seq - len(self._lines)  # the newest event that the ring has dropped
            lost = before - seq
            if lost > 0:
                return self._line(LostEvent, before, {"count": lost}), before
            lines = list(itertools.islice(self._lines, seq - before, seq - before + PIECE_EVENTS))
        return b"".join(lines), seq + len(lines)

    async def _more(self, seq: int) -> None:
        more = self._loop.create_future()
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
