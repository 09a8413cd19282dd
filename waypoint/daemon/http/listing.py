"""Long lists as JSON that is made while it is sent, off the event loop."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from waypoint.linux.tasks import pauses
from waypoint.service.shapes import Download

PIECE_RECORDS = 64
# Lists have threads of their own, because `pauses.wait` blocks while a session is frozen. All pieces of one list are
# made in one thread, because an SQLite connection may be used in one thread only.
_THREADS = itertools.cycle([ThreadPoolExecutor(1, "list") for _ in range(2)])


def as_json(wrap: str, records: Iterator[object]) -> Download:
    """`{"wrap": [records...]}`, byte for byte as if it had been encoded at once.

    `records` is advanced in one worker thread, PIECE_RECORDS at a time, each time after `pauses.wait`.
    With an empty `wrap` the answer is the list itself.
    """
    return Download("application/json", _pieces(wrap, records))


async def _pieces(wrap: str, records: Iterator[object]) -> AsyncGenerator[bytes, None]:
    loop, thread = asyncio.get_running_loop(), next(_THREADS)
    before = b'{"%s":[' % wrap.encode() if wrap else b"["
    while piece := await loop.run_in_executor(thread, _encode_some, records):
        yield before + piece
        before = b","
    yield (before if before != b"," else b"") + (b"]}" if wrap else b"]")


def _encode_some(records: Iterator[object]) -> bytes:
    """The next records without the brackets of their list; empty after the last."""
    pauses.wait()
    return msgspec.json.encode(list(itertools.islice(records, PIECE_RECORDS)))[1:-1]
