"""Tells a client in which stage the work for its request is, if the work takes long."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from waypoint.linux.tasks import stages
from waypoint.linux.tasks.stages import OpenStage, Stages
from waypoint.model import plainjson

BEGIN_S, AGAIN_S = 0.4, 0.1
NONE = b"{}"  # no stage
_MOST_SUBJECT = 200

Tell = Callable[[bytes], Awaitable[bool]]
"""Tells the client a stage; returns False if it need not be told more."""


@contextlib.contextmanager
def told(tell: Tell | None, *, at_first: bool = False) -> Iterator[None]:
    """If the `with` block takes longer than BEGIN_S, await `tell` with the stage of its work, in JSON, at each change.
    None: do nothing. `at_first`: only until it is in no stage. If `tell` raises ConnectionError or TimeoutError,
    nothing more is told.
    """
    if tell is None:
        yield
        return
    found = Stages()
    loop = asyncio.get_running_loop()
    begun: list[asyncio.Task[None]] = []

    def begin() -> None:
        begun.append(loop.create_task(_tell_always(found, tell, at_first=at_first)))

    timer = loop.call_later(BEGIN_S, begin)
    try:
        with stages.noted(found):
            yield
    finally:
        timer.cancel()
        for task in begun:
            task.cancel()


async def _tell_always(found: Stages, tell: Tell, *, at_first: bool) -> None:
    before = NONE
    with contextlib.suppress(ConnectionError, TimeoutError):  # the answer itself will meet this, too
        while True:
            now = as_json(found.current())
            if now != before and not await tell(now):
                return
            if now == NONE and at_first:
                return
            before = now
            await asyncio.sleep(AGAIN_S)


def as_json(one: OpenStage | None) -> bytes:
    """A stage as docs/protocol.md describes it, in ASCII."""
    if one is None:
        return NONE
    facts = {"code": str(one.code), "subject": one.subject[:_MOST_SUBJECT]}
    return plainjson.encode({**facts, "done": one.done, "total": one.total, "unit": one.unit}).encode()
