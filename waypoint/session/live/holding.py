"""Holding captures from the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from waypoint.capture.captures import Captures, Held
from waypoint.model.records import Capture


@contextlib.asynccontextmanager
async def holding(captures: Captures, *origins: Capture, recalls: bool = True) -> AsyncIterator[list[Held]]:
    """As `Captures.hold`, of all `origins`, for the event loop. Whatever was dropped meanwhile is removed in a thread
    at the end, also if the caller is cancelled: a tree may have any number of files. What is in the store alone is
    brought back first (`Captures.recall`), unless not `recalls`. Raises UnknownName, and what that raises.
    """
    with contextlib.ExitStack() as entered:  # takes a lock and looks at no file
        held = [entered.enter_context(captures.hold(origin)) for origin in origins]
        kept = entered.pop_all()
    try:
        for one in held:
            if recalls:
                captures.measures.note_use(one.capture.id)
            async with captures.moves.turn(one.capture.id):
                if recalls and captures.recall is not None and one.is_wanting():
                    await captures.recall(one)
        yield held
    finally:
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(kept.close)))
