"""Long lists as JSON that is made while it is sent, off the event loop."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from waypoint.linux.tasks import pauses
from waypoint.service.shapes import Download, Pages

# Lists have threads of their own, because `pauses.wait` blocks while a session is frozen. All pages of one list are
# made in one thread, because an SQLite connection may be used in one thread only.
_THREADS = itertools.cycle([ThreadPoolExecutor(1, "list") for _ in range(2)])


def as_json(wrap: str, pages: Pages[object]) -> Download:
    """`{"wrap": [records...]}`, byte for byte as if it had been encoded at once; with an empty `wrap` the list itself.
    One worker thread makes the pages. Before each page it waits for pauses.
    """
    return Download("application/json", _pieces(wrap, pages))


async def _pieces(wrap: str, pages: Pages[object]) -> AsyncGenerator[bytes, None]:
    loop, thread = asyncio.get_running_loop(), next(_THREADS)
    before = b'{"%s":[' % wrap.encode() if wrap else b"["
    while (piece := await loop.run_in_executor(thread, _encode_page, pages)) is not None:
        if piece:
            yield before + piece
            before = b","
    yield (before if before != b"," else b"") + (b"]}" if wrap else b"]")


def _encode_page(pages: Pages[object]) -> bytes | None:
    """The next page without the brackets of its list; None after the last."""
    pauses.wait()
    page = next(pages, None)
    return None if page is None else msgspec.json.encode(page)[1:-1]
