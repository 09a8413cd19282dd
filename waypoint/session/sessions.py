"""All sessions of a home: which there are, starting and stopping them, finding them again."""

import asyncio
import contextlib
from collections.abc import Callable

from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.names import parse_name
from waypoint.model.records import Capture
from waypoint.model.requests import SessionFacts, StartRequest
from waypoint.session import facts, record, starting
from waypoint.session.ending import Endings, end_dead, sweep
from waypoint.session.live import LiveSession
from waypoint.session.starting import Ground


class Sessions:
    """The registry. Lives in the daemon's event loop; what blocks goes to a thread."""

    def __init__(self, ground: Ground, on_activity: Callable[[], None]) -> None:
        """`on_activity`: called when a session starts, or its terminal says something."""
        self._ground = ground
        self._on_activity = on_activity
        self._live: dict[str, LiveSession] = {}
        self._busy: dict[str, asyncio.Lock] = {}
        self._endings = Endings(ground.places, ground.names, ground.pool, self._forget)

    @property
    def live(self) -> list[LiveSession]:
        return list(self._live.values())

    def get(self, branch: str) -> LiveSession:
        """The live session on `branch`.

        Raises UnknownName for an unknown branch, StateConflict for one that is not live.
        """
        parse_name(branch)
        session = self._live.get(branch)
        if session is not None:
            return session
        on = f"branch {branch}"
        if self._ground.names.branch(branch) is None:
            raise UnknownName("find", on, "there is no such branch", f"start it: waypoint shell {branch}")
        raise StateConflict("reach", on, "it has no live session", f"go on with its files: waypoint shell {branch}")

    async def start(self, request: StartRequest, uid: int) -> tuple[LiveSession, bool]:
        """The branch's live session; started if there is none (then True). `uid`: who asks."""
        branch = parse_name(request.branch)
        async with self._lock(branch):
            if branch in self._live:
                if request.from_name is not None:
                    next_step = f"stop it first: waypoint stop {branch}"
                    raise StateConflict("start", f"branch {branch}", "it has a live session", next_step)
                return self._live[branch], False
            origin = self._origin(branch, request.from_name)
            setting = starting.plan_setting(request, uid, origin.setting if origin else None)
            size = (request.rows, request.cols)
            live = await starting.start(self._ground, branch, origin, setting, size)
            self._enlist(live)
            return live, True

    def _origin(self, branch: str, from_name: str | None) -> Capture | None:
        names = self._ground.names
        known = names.branch(branch)
        if from_name is None:
            return names.capture(known.tip) if known and known.tip else None
        if known and known.tip:
            on = f"branch {branch} from {from_name}"
            raise StateConflict("start", on, "the branch exists", "choose a new branch name")
        if from_name in self._live:
            next_step = f"stop it first: waypoint stop {from_name}"
            raise StateConflict("start from", f"branch {from_name}", "it is live", next_step)
        return names.resolve(from_name)

    def _enlist(self, live: LiveSession) -> None:
        self._live[live.branch] = live
        live.terminal.on_activity = self._on_activity
        live.watch(lambda: self._endings.begin(live, "crashed"))
        self._on_activity()

    def _forget(self, live: LiveSession) -> None:
        if self._live.get(live.branch) is live:
            del self._live[live.branch]

    async def stop(self, branch: str, *, discard: bool) -> Capture | None:
        """End the session on `branch`, keeping its files unless `discard`. Returns the new tip."""
        live = self.get(branch)
        async with self._lock(branch):
            return await asyncio.shield(self._endings.begin(live, "stopped", discard=discard))

    def adopt_all(self) -> None:
        """Find the sessions that outlived the last daemon, and end those that did not. Called once, first of all."""
        ground = self._ground
        for row in ground.names.live():
            folder = ground.places.sessions / row.session
            entry = record.load(folder)
            if entry is not None and entry.is_alive():
                with contextlib.suppress(OSError):  # it ended between the two looks
                    self._enlist(LiveSession.adopt(entry, folder, ground.launcher))
                    continue
            end_dead(ground.places, ground.names, ground.pool, row, entry)
        sweep(ground.places, ground.names, ground.pool)

    async def facts(self, *, all_branches: bool) -> list[SessionFacts]:
        """Of the live sessions; with `all_branches` also of those that could be started again."""
        rows = list(await asyncio.gather(*(facts.of_live(live, self._ground.pool) for live in self.live)))
        names = self._ground.names
        for branch in names.branches() if all_branches else []:
            if branch.name not in self._live and branch.tip:
                rows.append(facts.of_capture(branch.name, branch.created, names.capture(branch.tip)))
        return sorted(rows, key=lambda row: row.branch)

    async def close(self) -> None:
        """Let go of everything; the sessions go on without a reader."""
        await self._endings.settle()
        for live in self.live:
            live.release()

    def _lock(self, branch: str) -> asyncio.Lock:
        return self._busy.setdefault(branch, asyncio.Lock())
