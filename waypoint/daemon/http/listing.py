"""Encoding long lists as JSON page by page, in a worker thread, while they are sent."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from waypoint.linux.tasks import pauses
from waypoint.service.shapes import Download, Pages

# Lists have their own threads, because `pauses.wait` blocks while a session is frozen for a capture. All pages of a
# list are made in one thread, because an SQLite connection may be used in one thread only.
_THREADS = itertools.cycle([ThreadPoolExecutor(1, "list") for _ in range(2)])


def as_json(wrap: str, pages: Pages[object]) -> Download:
    """The JSON `{"wrap": [records...]}`, without blanks; with an empty `wrap` only the list. One worker thread makes
    the pages. Before each page it waits until no session is frozen for a capture.
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
    """The JSON of the next page without brackets; None after the last page."""
    pauses.wait()
    page = next(pages, None)
    return None if page is None else msgspec.json.encode(page)[1:-1]
