"""All live sessions of a home, and the locks (turns) that keep two requests from acting on one branch at once."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal, NamedTuple

from waypoint.egress.published import Target
from waypoint.egress.router import Guest
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.names import parse_name
from waypoint.model.records import LiveRow
from waypoint.records.callers import for_nobody
from waypoint.session.end import Endings, Sealed
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.turns import Carried, Turns
from waypoint.terminal.inside.spool import Answer

log = logging.getLogger(__name__)

ServeInside = Callable[[LiveSession, list[str]], Awaitable[Answer]]
"""Answers a request of a process inside a session: a `waypoint` command with these arguments."""


class Unreachable(NamedTuple):
    """A session that runs but could not be adopted. `said`: the reason."""

    row: LiveRow
    cgroup: str
    said: str


SessionChange = Literal["started", "ended", "replaced"]


class Registry:
    """The live sessions of one home. Use it only in the event loop."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._turns = Turns()
        self.endings = Endings(resources, self._forget)
        self.serve_inside: ServeInside = _serve_nothing
        self.on_change: Callable[[SessionChange, LiveSession], None] = _ignore_change
        self._live: dict[str, LiveSession] = {}
        self.unreachable: dict[str, Unreachable] = {}  # running sessions that the daemon cannot reach, by branch

    @property
    def live(self) -> list[LiveSession]:
        return list(self._live.values())

    @property
    def running(self) -> set[str]:
        return self._live.keys() | self.unreachable.keys()

    def find(self, branch: str) -> LiveSession | None:
        return self._live.get(branch)

    def get(self, branch: str, *, to_discard: bool = False) -> LiveSession:
        """Return the live session on `branch`. `to_discard`: whether the caller wants to discard the session, which
        changes the next step in the error.
        """
        parse_name(branch)
        session = self._live.get(branch)
        if session is not None:
            return session
        on = f"branch {branch}"
        self._check_reachable(branch)
        ref = self.resources.names.ref(branch)
        if ref is not None and ref.kind != "branch":
            next_step = f"to start a branch from it: waypoint shell NEW --from {branch} -d"
            raise UnknownName("find", on, f"{branch} is a {ref.kind}, not a branch", next_step)
        if ref is None:
            next_step = f"'waypoint ps --all' lists the branches; to start this one: waypoint shell {branch} -d"
            said = f"there is no such branch{self.resources.names.did_you_mean(branch, 'branch')}"
            raise UnknownName("find", on, said, next_step)
        next_step = f"to continue from its files: waypoint shell {branch}"
        if to_discard:
            next_step = f"to remove its files, remove the branch: waypoint rm {branch}"
        raise StateConflict("reach", on, "it has no running session", next_step, code="not-live")

    @contextlib.asynccontextmanager
    async def turn(self, *names: str) -> AsyncIterator[None]:
        """Hold the turns (locks) of all `names` during the `with` block. First the sessions that were replaced there
        end, and pending records are written.
        """
        async with self._turns.take(*names):
            await self.endings.settled(*names)
            await self.resources.pending_records.settle(*names)
            yield

    async def share_turns(self, works: Mapping[str, Coroutine[Any, Any, Carried]]) -> list[Carried]:
        return await self._turns.share(works)

    async def settled(self, branch: str) -> LiveSession | None:
        """Return the live session on `branch`, or None. If the session is ending, wait for its end first. The caller
        must have the turn of `branch`.
        """
        self._check_reachable(branch)
        live = self.find(branch)
        if live is not None and live.ending is not None:
            await asyncio.wait([live.ending])
            await self.resources.pending_records.settle(branch)
            live = self.find(branch)
        return live

    def _check_reachable(self, branch: str) -> None:
        if branch in self.unreachable:
            said = f"its session is running, but the daemon cannot reach it: {self.unreachable[branch].said}"
            next_step = (
                "restore this file, then 'waypoint daemon stop'; or end the session and keep its files: "
                f"waypoint stop {branch}"
            )
            raise StateConflict("reach", f"branch {branch}", said, next_step, code="unreachable")

    async def settled_live(self, branch: str) -> LiveSession:
        """Return the live session on `branch`, or raise the error of `get`. If the session is ending, wait for its end
        first. The caller must have the turn of `branch`.
        """
        return await self.settled(branch) or self.get(branch)

    def enlist(self, live: LiveSession) -> None:
        change: SessionChange = "replaced" if live.branch in self._live else "started"
        self._live[live.branch] = live
        row, processes = live.record.row, live.processes
        published = self.resources.published
        live.why_no_ports = lambda: published.why_not(row.session)
        published.begin(self.published_by(live), row.setting.publish)
        if row.setting.net == "private":
            guest = Guest(live.record.init_pid, live.record.init_start, processes, tuple(row.setting.allow_net))
            egress = self.resources.egress
            live.no_way_out = lambda: egress.outcomes.get(row.session, egress.why_not)
            live.network_setup = egress.connect(row.session, guest)
        origin = live.record.origin
        restored = Answer(0, f"restored {live.branch}  {origin}\n") if origin else None
        with contextlib.suppress(OSError):  # if the session's user has replaced the spool folder, it serves no requests
            live.inside.open(functools.partial(self.serve_inside, live), restored)
        # A session that ends by itself has no caller, so its end is recorded without one.
        for_nobody(lambda: live.watch(lambda: live.is_killed or self.endings.begin(live, Sealed("crashed"))))
        self.on_change(change, live)

    def published_by(self, live: LiveSession) -> Target:
        record = live.record
        folder = self.resources.places.sessions / record.row.session
        return Target(record.row.session, live.branch, record.init_pid, record.init_start, folder)

    def _forget(self, live: LiveSession) -> None:
        self.resources.egress.forget(live.record.row.session)
        self.resources.published.release(live.record.row.session)
        if self._live.get(live.branch) is live:
            del self._live[live.branch]
            self.on_change("ended", live)

    async def close(self) -> None:
        """Wait until sessions that are ending have ended, then release all others, which continue without a daemon."""
        await self.endings.settle()
        await self.resources.pending_records.close()
        for live in self.live:
            try:
                live.restore_runtime_folder(self.resources.places.sessions)
            except OSError as error:
                log.error("the next daemon will not find the session on %s: %s", live.branch, error)
            live.release()


def _ignore_change(change: SessionChange, live: LiveSession) -> None:
    return


async def _serve_nothing(live: LiveSession, words: list[str]) -> Answer:
    return Answer(125, "waypoint: this request is not served here\n")
