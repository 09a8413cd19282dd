"""Turns at the content of captures: while one is brought back from the store, or removed because the store has it,
nobody else does either.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future


class Moves:
    """The turns of one home, of threads and of the tasks of an event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going: dict[str, Future[None]] = {}

    @contextlib.contextmanager
    def blocking(self, capture_id: str) -> Iterator[None]:
        """Have the turn of a capture, for a thread that may wait for it."""
        while (other := self._begin(capture_id)) is not None:
            other.result()
        try:
            yield
        finally:
            self._end(capture_id)

    @contextlib.asynccontextmanager
    async def turn(self, capture_id: str) -> AsyncIterator[None]:
        """As `blocking`, for a task."""
        while (other := self._begin(capture_id)) is not None:
            await asyncio.wait([asyncio.wrap_future(other)])  # which, unlike an await of it, never cancels the future
        try:
            yield
        finally:
            self._end(capture_id)

    def _begin(self, capture_id: str) -> Future[None] | None:
        """Take the turn; or return what will be done when whoever has it now ends."""
        with self._lock:
            other = self._going.get(capture_id)
            if other is None:
                self._going[capture_id] = Future()
            return other

    def _end(self, capture_id: str) -> None:
        with self._lock:
            ended = self._going.pop(capture_id)
        ended.set_result(None)
