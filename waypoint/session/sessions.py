"""All sessions of a home: which there are, starting and stopping them, finding them again."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from waypoint.capture import sealing
from waypoint.linux import cgroups
from waypoint.model.errors import StateConflict, UnknownName, UsageProblem
from waypoint.model.names import parse_name
from waypoint.model.records import Capture, Setting
from waypoint.model.requests import SessionFacts, StartRequest
from waypoint.session import facts, record, starting
from waypoint.session.ending import Endings, end_dead, end_dumps, end_unborn, sweep
from waypoint.session.home_ground import HomeGround
from waypoint.session.inside.spool import Answer
from waypoint.session.live import LiveSession
from waypoint.session.rewinding import see_through, sweep_views
from waypoint.session.setting import plan_setting
from waypoint.session.starting import Birth, plan_birth

ServeInside = Callable[[LiveSession, list[str]], Awaitable[Answer]]
"""What a session's own processes ask, and what they get."""


class Sessions:
    """The registry. Lives in the daemon's event loop; what blocks goes to a thread."""

    def __init__(self, ground: HomeGround, on_activity: Callable[[], None]) -> None:
        """`on_activity`: called when a session starts, or its terminal says something."""
        self._ground = ground
        self._on_activity = on_activity
        self._live: dict[str, LiveSession] = {}
        self._busy: dict[str, asyncio.Lock] = {}
        self.endings = Endings(ground, self._forget)
        self.serve_inside: ServeInside = _serve_nothing

    @property
    def live(self) -> list[LiveSession]:
        return list(self._live.values())

    def find(self, branch: str) -> LiveSession | None:
        """The live session on `branch`, if there is one."""
        return self._live.get(branch)

    def get(self, branch: str) -> LiveSession:
        """The live session on `branch`.

        Raises UnknownName for an unknown branch, StateConflict for one that is not live.
        """
        parse_name(branch)
        session = self._live.get(branch)
        if session is not None:
            return session
        on = f"branch {branch}"
        ref = self._ground.names.ref(branch)
        if ref is None or ref.kind != "branch":
            raise UnknownName("find", on, "there is no such branch", f"start it: waypoint shell {branch}")
        raise StateConflict("reach", on, "it has no live session", f"go on with its files: waypoint shell {branch}")

    @contextlib.asynccontextmanager
    async def turn(self, *branches: str) -> AsyncIterator[None]:
        """Nobody else starts, captures, replaces or ends a session on these branches meanwhile."""
        async with contextlib.AsyncExitStack() as stack:
            for branch in sorted(set(branches)):  # one order for everybody
                await stack.enter_async_context(self._busy.setdefault(branch, asyncio.Lock()))
            yield

    async def start(self, request: StartRequest, uid: int) -> tuple[LiveSession, bool]:
        """The branch's live session; started if there is none (then True). `uid`: who asks."""
        branch = parse_name(request.branch)
        async with self.turn(branch):
            found = await settled(self, branch)
            if found is not None:
                if request.from_name is not None:
                    next_step = f"stop it first: waypoint stop {branch}"
                    raise StateConflict("start", f"branch {branch}", "it has a live session", next_step)
                return found, False
            origin = self._origin(branch, request.from_name)
            setting = plan_setting(request, uid, origin.setting if origin else None)
            processes = origin is not None and origin.tier == "live"
            if origin is not None and processes:
                _check_unchanged(branch, request, setting, origin)
            birth = plan_birth(branch, origin, setting, (request.rows, request.cols), processes=processes)
            (live,) = await self.bring_up([birth], "start")
            return live, True

    async def bring_up(self, births: Iterable[Birth], verb: str) -> list[LiveSession]:
        """Start them all, or none, and enter them in the registry. The caller has their turn."""
        births = list(births)
        found = await starting.start(self._ground, births, verb)
        for live, birth in zip(found, births, strict=True):
            self.enlist(live, birth.origin if birth.processes else None)
        return found

    def _origin(self, branch: str, from_name: str | None) -> Capture | None:
        names = self._ground.names
        known = names.ref(branch)
        has_tip = known is not None and known.kind == "branch" and known.capture is not None
        if from_name is None:
            return names.resolve(branch) if has_tip else None
        if has_tip:
            on = f"branch {branch} from {from_name}"
            raise StateConflict("start", on, "the branch exists", "choose a new branch name")
        if from_name in self._live:
            next_step = f"fork it as it is now: waypoint fork {from_name} {branch}"
            raise StateConflict("start from", f"branch {from_name}", "it is live", next_step)
        return names.resolve(from_name)

    def enlist(self, live: LiveSession, origin: Capture | None = None) -> None:
        """From now on `live` is the session of its branch. `origin`: the capture whose processes it has."""
        self._live[live.branch] = live
        restored = Answer(0, f"restored {live.branch}  {origin.id}\n") if origin else None
        with contextlib.suppress(OSError):  # the session's user has put something else there: nobody can ask inside
            live.inside.open(functools.partial(self.serve_inside, live), restored)
        live.terminal.on_activity = self._on_activity
        live.watch(lambda: self.endings.begin(live, sealing.Sealed("crashed")))
        self._on_activity()

    def _forget(self, live: LiveSession) -> None:
        if self._live.get(live.branch) is live:
            del self._live[live.branch]

    async def stop(self, branch: str, *, discard: bool) -> Capture | None:
        """End the session on `branch`, keeping its files unless `discard`. Returns the new tip."""
        self.get(branch)
        async with self.turn(branch):
            live = self.get(branch)  # not the one that a restore has replaced meanwhile
            conclusion = sealing.Discarded() if discard else sealing.Sealed("stopped")
            return await asyncio.shield(self.endings.begin(live, conclusion))

    def adopt_all(self) -> None:
        """Find the sessions that outlived the last daemon, and end those that did not. Called once, first of all."""
        ground = self._ground
        end_dumps(ground)
        for row in ground.names.live(ready=False):
            end_unborn(ground, row)
        for row in ground.names.live():
            folder = ground.places.sessions / row.session
            entry = record.load(folder)
            if entry is not None and entry.is_alive():
                with contextlib.suppress(OSError):  # it ended between the two looks
                    live = LiveSession.adopt(entry, folder, ground.launcher)
                    see_through(ground, live, folder)
                    cgroups.thaw(entry.cgroup)  # the last daemon may have died while it was capturing it
                    self.enlist(live)
                    continue
            end_dead(ground, row, entry)
        sweep(ground)
        sweep_views(ground)

    async def facts(self, *, all_branches: bool) -> list[SessionFacts]:
        """Of the live sessions; with `all_branches` also of those that could be started again."""
        asked = self.live
        found = await asyncio.gather(*(facts.of_live(live, self._ground.pool) for live in asked))
        # Looking takes a while, in which some may have ended.
        rows = [row for live, row in zip(asked, found, strict=True) if self._live.get(live.branch) is live]
        names = self._ground.names
        for name, ref in names.refs().items() if all_branches else ():
            if ref.kind == "branch" and name not in self._live and ref.capture:
                rows.append(facts.of_capture(name, ref.created, names.capture(ref.capture)))
        return sorted(rows, key=lambda row: row.branch)

    async def close(self) -> None:
        """Let go of everything; the sessions go on without a reader."""
        await self.endings.settle()
        for live in self.live:
            live.release()


async def settled(sessions: Sessions, branch: str) -> LiveSession | None:
    """The live session on `branch`, for a caller who has its turn. One that is ending is waited for, and is none."""
    live = sessions.find(branch)
    if live is not None and live.ending is not None:
        await asyncio.wait([live.ending])
        live = sessions.find(branch)
    return live


async def _serve_nothing(live: LiveSession, words: list[str]) -> Answer:
    return Answer(125, "waypoint: this cannot be asked here\n")


def _check_unchanged(branch: str, request: StartRequest, setting: Setting, origin: Capture) -> None:
    """Processes come back as they were. Raises UsageProblem if something else is asked for."""
    names = ("base", "binds", "net", "user")
    changed = [name for name in names if getattr(setting, name) != getattr(origin.setting, name)]
    changed += ["command"] if request.command else []
    if changed:
        said = f"it comes back with its processes, whose {' and '.join(changed)} cannot be changed"
        raise UsageProblem("start", f"branch {branch}", said, "leave that out, or start from a capture of tier files")
