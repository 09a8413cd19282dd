"""Records that are overdue: what has happened on a branch already, and could not be put on record (the disk was full).

A process that has ended cannot be taken back. So the daemon's memory goes on as if the record were written, the writing
is tried again until it succeeds, and until then nothing new begins on the branch.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from waypoint.model.errors import Failed, WaypointError

RETRY_S = 1.0

log = logging.getLogger(__name__)


class _Debt(NamedTuple):
    what: str
    write: Callable[[], object]


class Overdue:
    """The overdue records of one home. To be used in the daemon's event loop."""

    def __init__(self) -> None:
        self._debts: dict[str, list[_Debt]] = {}
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._retrying: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, branch: str, what: str, write: Callable[[], object], error: Exception) -> Failed:
        """Try `write` again, in a thread, every RETRY_S until it raises neither WaypointError nor OSError.

        `what`: what has happened on the branch, in words. `error`: why `write`, or a first part of it, has failed.
        Returns the error for whoever asked for what has happened.
        """
        self._debts.setdefault(branch, []).append(_Debt(what, write))
        problem = _problem(branch, what, error)
        log.warning("%s", problem)
        self._retry_later()
        return problem

    async def settle(self, *branches: str) -> None:
        """Try now to write what is overdue on these branches, before anything new begins there.

        Raises Failed, with the reason, if that fails. Costs nothing if nothing is overdue.
        """
        if any(branch in self._debts for branch in branches):
            # Shielded: what a thread writes goes on when the caller is cancelled, and must not be written twice.
            problem = await asyncio.shield(asyncio.ensure_future(self._write_all(branches)))
            if problem is not None:
                raise problem

    async def close(self) -> None:
        """Try no more, and wait for the writing under way. The next daemon sees to what is left: it is on record as
        live, or as being started.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        async with self._writing:
            return

    async def _write_all(self, branches: tuple[str, ...]) -> Failed | None:
        async with self._writing:
            for branch in branches:
                while debts := self._debts.get(branch):
                    problem = await self._write(branch, debts[0])
                    if problem is not None:
                        return problem
                    debts.pop(0)
                    if not debts:
                        del self._debts[branch]
        return None

    async def _write(self, branch: str, debt: _Debt) -> Failed | None:
        if self._closed:
            return _problem(branch, debt.what, RuntimeError("the daemon is being stopped"))
        try:
            await asyncio.to_thread(debt.write)
        except (WaypointError, OSError) as error:
            return _problem(branch, debt.what, error)
        log.info("it is on record now that %s on %s", debt.what, branch)
        return None

    def _retry_later(self) -> None:
        if self._timer is None and self._debts and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._retrying = asyncio.ensure_future(self._retry_all())

    async def _retry_all(self) -> None:
        for branch in list(self._debts):
            await self._write_all((branch,))
        self._retry_later()


def _problem(branch: str, what: str, error: Exception) -> Failed:
    said, next_step = str(error), "see 'waypoint doctor'"
    if isinstance(error, WaypointError):
        said, next_step = f"{error.said} ({error.on})", error.next_step or next_step
    again = "it is put on record within a second then, and until then nothing new begins on this branch"
    return Failed("put on record", f"that {what} on branch {branch}", said, f"{next_step}; {again}")
