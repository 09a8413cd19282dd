"""Points at command boundaries, for sessions that were started with `shell --auto`.

A prompt of the session's shell ends a command. When the shell has stayed at its prompt for QUIET_S, a point is made in
the background, so that a row of quick commands gets one point. A prompt is never delayed; the pause of the capture
comes while the shell waits for keys.
"""

import asyncio
import logging

from waypoint.model.errors import WaypointError
from waypoint.model.requests import PointRequest
from waypoint.records.callers import for_nobody
from waypoint.service import points
from waypoint.service.home import Home
from waypoint.session.live.session import LiveSession
from waypoint.terminal.hooks.prompt import Look

QUIET_S = 0.3
BEGIN = "the session begins"
AFTER, TYPED = "after: ", "after a typed command"

log = logging.getLogger(__name__)


class AutoPoints:
    """Use it in the event loop only."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._waiting: dict[str, asyncio.TimerHandle] = {}  # by session
        self._making: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()  # sessions that have a point

    def watch(self, live: LiveSession, *, is_new: bool) -> None:
        """Make points of the session from now on. `is_new`: it has just started, and may be at its prompt already."""
        live.shell.watch.on_prompt.append(lambda: self._later(live))
        if is_new and live.shell.watch.prompts:
            self._later(live)

    def _later(self, live: LiveSession) -> None:
        ident = live.record.row.session
        if (waiting := self._waiting.pop(ident, None)) is not None:
            waiting.cancel()
        loop = asyncio.get_running_loop()
        self._waiting[ident] = for_nobody(lambda: loop.call_later(QUIET_S, self._begin, live))

    def _begin(self, live: LiveSession) -> None:
        ident = live.record.row.session
        self._waiting.pop(ident, None)
        if self._home.sessions.find(live.branch) is not live or live.shell.watch.look() is not Look.PROMPT:
            return  # the session has ended, or a command runs; its prompt comes here again
        if ident in self._making:
            self._later(live)
            return
        self._making[ident] = task = asyncio.ensure_future(self._make(live))
        task.add_done_callback(lambda _: self._making.pop(ident, None))

    async def _make(self, live: LiveSession) -> None:
        if live.commands:
            label = f"{AFTER}{live.commands[-1]}"
        else:
            label = TYPED if live.record.row.session in self._begun else BEGIN
        try:
            await points.make(self._home, live.branch, PointRequest(label=label))
            self._begun.add(live.record.row.session)
        except (WaypointError, OSError) as error:
            log.warning("no point of %s was made at its prompt: %s", live.branch, error)

    async def close(self) -> None:
        """Begin no more points, and wait for those that are being made."""
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()
        if self._making:
            await asyncio.wait(self._making.values())
