"""Records of events on a branch that could not be written yet, because the disk was full.

A process that has ended cannot be restored, so the daemon continues as if the record were written. It retries the write
until that succeeds; until then no new request on the branch begins.
"""

import asyncio
import contextvars
import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

from waypoint.model.errors import Failed, WaypointError

RETRY_S = 1.0

log = logging.getLogger(__name__)


class _Pending(NamedTuple):
    event: str
    write: Callable[[], object]


class PendingRecords:
    def __init__(self) -> None:
        self._pending: dict[str, list[_Pending]] = {}
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._retrying: asyncio.Task[None] | None = None
        self._closed = False
        self.on_written: Callable[[], object] = lambda: None  # called in the event loop after each write

    def add(self, branch: str, event: str, write: Callable[[], object], error: Exception) -> Failed:
        """Call `write` in a thread every RETRY_S until it raises neither WaypointError nor OSError. `event`: a clause,
        such as "the session has ended". Returns the error for the client that caused the event. The record names the
        caller of this method as the one who caused the event.
        """
        write = functools.partial(contextvars.copy_context().run, write)
        self._pending.setdefault(branch, []).append(_Pending(event, write))
        problem = _problem(branch, event, error)
        log.warning("%s", problem)
        self._retry_later()
        return problem

    async def settle(self, *branches: str) -> None:
        """Write the pending records of these branches now. Raises Failed if one cannot be written yet."""
        if any(branch in self._pending for branch in branches):
            # Shielded, because the thread continues to write when the caller is cancelled, and must not write twice.
            problem = await asyncio.shield(asyncio.ensure_future(self._write_all(branches)))
            if problem is not None:
                raise problem

    async def close(self) -> None:
        """Stop retrying, and wait for a write under way. The next daemon repairs the rest."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        async with self._writing:
            return

    async def _write_all(self, branches: tuple[str, ...]) -> Failed | None:
        async with self._writing:
            for branch in branches:
                while pending := self._pending.get(branch):
                    problem = await self._write(branch, pending[0])
                    if problem is not None:
                        return problem
                    pending.pop(0)
                    if not pending:
                        del self._pending[branch]
        return None

    async def _write(self, branch: str, pending: _Pending) -> Failed | None:
        if self._closed:
            return _problem(branch, pending.event, RuntimeError("the daemon is being stopped"))
        try:
            await asyncio.to_thread(pending.write)
        except (WaypointError, OSError) as error:
            return _problem(branch, pending.event, error)
        log.info("it is on record now that %s on %s", pending.event, branch)
        self.on_written()
        return None

    def _retry_later(self) -> None:
        if self._timer is None and self._pending and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._retrying = asyncio.ensure_future(self._retry_all())

    async def _retry_all(self) -> None:
        for branch in list(self._pending):
            await self._write_all((branch,))
        self._retry_later()


def _problem(branch: str, event: str, error: Exception) -> Failed:
    said, next_step = str(error), "see 'waypoint doctor'"
    if isinstance(error, WaypointError):
        said, next_step = f"{error.said} ({error.on})", error.next_step or next_step
    again = "it is then recorded within a second; until then no new operation begins on this branch"
    return Failed("record", f"that {event} on branch {branch}", said, f"{next_step}; {again}")
