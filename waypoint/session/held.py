"""Holding the capture of a name. A live session is captured first; that capture is dropped after the reading."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from waypoint.capture.captures import HeldCapture
from waypoint.capture.layers.layer import CaptureOptions
from waypoint.capture.sealing import placed
from waypoint.session.birth.rights import check_origin
from waypoint.session.checkpoint import capture
from waypoint.session.live.resources import holding
from waypoint.session.registry import Registry


@contextlib.asynccontextmanager
async def held_now(sessions: Registry, name: str, tried: str) -> AsyncIterator[HeldCapture]:
    """Hold the capture `name` or, if it is a branch with a live session, a new capture of this session, which is not
    recorded. `tried`: the caller's action, for errors. Raises UnknownName, NotAllowed, StateConflict, Failed.
    """
    resources = sessions.resources
    async with contextlib.AsyncExitStack() as stack:
        async with sessions.turn(name):
            live = await sessions.settled(name)
            if live is None:
                origin = resources.names.resolve(name)
                check_origin(resources, origin.setting.user, tried, name)
            else:
                check_origin(resources, live.record.row.setting.user, tried, name)
                taken = await capture(resources, live, CaptureOptions("respawn"))
                origin = placed(resources.names, taken)
        try:
            (held,) = await stack.enter_async_context(holding(resources.captures, origin))
        finally:
            if live is not None:  # at the end of the `with` block, which holds it
                await asyncio.shield(asyncio.to_thread(resources.captures.drop, origin))
        yield held
