"""The resources that all sessions of a home share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from waypoint.capture.captures import Captures, HeldCapture
from waypoint.egress.egress import Egress
from waypoint.egress.published import Publisher
from waypoint.launch.criu_process import CriuSpawner
from waypoint.launch.ground.places import SharedPlaces
from waypoint.launch.launcher_link import Launcher
from waypoint.launch.templates import Templates
from waypoint.model.records import Capture
from waypoint.records.names import Names
from waypoint.session.live.pending_records import PendingRecords
from waypoint.session.live.standbys import Standbys
from waypoint.upper.contract import Pool


class Resources(NamedTuple):
    """`pool`: for the upper trees of live sessions; only `captures` uses the upper trees of captures. `writing`: keeps
    the pool growing in time during a `with` block in which the daemon writes much into it. `relieve`: frees disk space
    that nothing needs, and returns whether there was any. `trusted`: the user who may do all that root may, if any.
    """

    places: SharedPlaces
    names: Names
    pool: Pool
    writing: Callable[[], AbstractContextManager[None]]
    relieve: Callable[[], Awaitable[bool]]
    captures: Captures
    launcher: Launcher
    criu: CriuSpawner
    templates: Templates
    pending_records: PendingRecords
    egress: Egress
    published: Publisher
    standbys: Standbys
    trusted: int | None = None


@contextlib.asynccontextmanager
async def holding(captures: Captures, *origins: Capture) -> AsyncIterator[list[HeldCapture]]:
    """Hold all `origins` (`Captures.hold`) during the `async with` block. Captures that are dropped meanwhile are
    removed at its end, in a thread.
    """
    if all(map(captures.is_ready, origins)):
        held, kept = _hold(captures, origins)  # takes only a lock, so it may run in the event loop
    else:  # they are extracted from the store
        holding_all = asyncio.ensure_future(asyncio.to_thread(_hold, captures, origins))
        try:
            held, kept = await asyncio.shield(holding_all)
        except asyncio.CancelledError:
            holding_all.add_done_callback(_let_go)
            raise
    try:
        yield held
    finally:
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(kept.close)))


def _hold(captures: Captures, origins: Sequence[Capture]) -> tuple[list[HeldCapture], contextlib.ExitStack]:
    with contextlib.ExitStack() as entered:
        held = [entered.enter_context(captures.hold(origin)) for origin in origins]
        return held, entered.pop_all()


def _let_go(done: asyncio.Future[tuple[list[HeldCapture], contextlib.ExitStack]]) -> None:
    if not done.cancelled() and done.exception() is None:
        done.get_loop().run_in_executor(None, done.result()[1].close)
