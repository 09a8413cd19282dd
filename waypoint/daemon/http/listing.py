"""Long lists as JSON that is made while it is sent, off the event loop."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from waypoint.service.shapes import Download

PIECE_RECORDS = 64
# Lists have threads of their own, because `wait` may block one as long as a session is frozen. All pieces of one list
# are made in one thread, because an SQLite connection may be used in one thread only.
_THREADS = itertools.cycle([ThreadPoolExecutor(1, "list") for _ in range(2)])


def as_json(wrap: str, records: Iterator[object], wait: Callable[[], None]) -> Download:
    """`{"wrap": [records...]}`, byte for byte as if it had been encoded at once.

    `records` is advanced in one worker thread, PIECE_RECORDS at a time, each time after a call of `wait`.
    With an empty `wrap` the answer is the list itself.
    """
    return Download("application/json", _pieces(wrap, records, wait))


async def _pieces(wrap: str, records: Iterator[object], wait: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    loop, thread = asyncio.get_running_loop(), next(_THREADS)
    before = b'{"%s":[' % wrap.encode() if wrap else b"["
    while piece := await loop.run_in_executor(thread, _encode_some, records, wait):
        yield before + piece
        before = b","
    yield (before if before != b"," else b"") + (b"]}" if wrap else b"]")


def _encode_some(records: Iterator[object], wait: Callable[[], None]) -> bytes:
    """The next records without the brackets of their list; empty after the last."""
    wait()
    return msgspec.json.encode(list(itertools.islice(records, PIECE_RECORDS)))[1:-1]
