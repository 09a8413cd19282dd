"""All sessions of a home: starting them, finding them again, ending them, saying what there is."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from waypoint.capture import sealing
from waypoint.linux import cgroups, procfs
from waypoint.model.errors import Failed, StateConflict, UnknownName, UsageProblem, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.names import parse_name
from waypoint.model.records import Capture, EndReason, LiveRow, Setting
from waypoint.model.requests import SessionFacts, StartRequest
from waypoint.session import facts, record, start_plan
from waypoint.session.launcher_link import Launcher
from waypoint.session.live import LiveSession
from waypoint.session.places import Places
from waypoint.session.record import RuntimeRecord
from waypoint.session.users import find_user, user_name
from waypoint.store.names import Names
from waypoint.upper.contract import Pool

ENDING_S = 15.0


class Sessions:
    """The registry. Lives in the daemon's event loop; what blocks goes to a thread."""

    def __init__(self, places: Places, names: Names, pool: Pool, launcher: Launcher) -> None:
        self._places = places
        self._names = names
        self._pool = pool
        self._launcher = launcher
        self._live: dict[str, LiveSession] = {}
        self._busy: dict[str, asyncio.Lock] = {}
        self._endings: set[asyncio.Task[Capture | None] | asyncio.Task[None]] = set()
        self.on_activity: Callable[[], None] = lambda: None

    @property
    def live(self) -> list[LiveSession]:
        return list(self._live.values())

    def get(self, branch: str) -> LiveSession:
        """The live session on `branch`. Raises UnknownName for an unknown branch, StateConflict for one that is not
        live.
        """
        parse_name(branch)
        session = self._live.get(branch)
        if session is not None:
            return session
        if self._names.branch(branch) is None:
            raise UnknownName(
                "find", f"branch {branch}", "there is no such branch", f"start it: waypoint shell {branch}"
            )
        raise StateConflict(
            "reach", f"branch {branch}", "it has no live session", f"go on from its kept files: waypoint shell {branch}"
        )

    async def start(self, request: StartRequest, uid: int) -> tuple[LiveSession, bool]:
        """The branch's live session; started if there is none (then True). `uid`: who asks."""
        branch = parse_name(request.branch)
        async with self._lock(branch):
            if branch in self._live:
                if request.from_name is not None:
                    raise StateConflict(
                        "start", f"branch {branch}", "it has a live session", f"stop it first: waypoint stop {branch}"
                    )
                return self._live[branch], False
            origin = self._origin(branch, request.from_name)
            setting = plan_setting(request, uid, origin.setting if origin else None)
            return await self._start(branch, origin, setting, (request.rows, request.cols)), True

    def _origin(self, branch: str, from_name: str | None) -> Capture | None:
        known = self._names.branch(branch)
        if from_name is None:
            return self._names.capture(known.tip) if known and known.tip else None
        if known and known.tip:
            raise StateConflict(
                "start", f"branch {branch} from {from_name}", "the branch exists", "choose a new branch name"
            )
        if from_name in self._live:
            raise StateConflict(
                "start from", f"branch {from_name}", "it is live", f"stop it first: waypoint stop {from_name}"
            )
        return self._names.resolve(from_name)

    async def _start(self, branch: str, origin: Capture | None, setting: Setting, size: tuple[int, int]) -> LiveSession:
        session = new_id()
        row = LiveRow(
            branch=branch,
            session=session,
            tree=session,
            started=time.time(),
            parent=origin.id if origin else None,
            setting=setting,
        )
        self._names.begin(row)
        try:
            return await self._launch(row, origin, size)
        except BaseException as error:
            await self._undo_start(row)
            if isinstance(error, OSError):
                where = f" {error.filename}" if error.filename else ""
                raise Failed(
                    "start a session on", f"branch {branch}", f"{error.strerror}{where}", "see 'waypoint doctor'"
                ) from error
            raise

    async def _launch(self, row: LiveRow, origin: Capture | None, size: tuple[int, int]) -> LiveSession:
        places = self._places
        nonce = new_id()
        group = places.cgroup_of(row.session)
        plan = start_plan.plan_layers(row.setting, places.hidden)

        def prepare() -> Path:
            self._pool.grow_if_needed()
            tree = self._pool.snapshot(origin.tree, row.tree) if origin else self._pool.create(row.tree)
            start_plan.prepare_tree(Path(tree), plan, row.setting.user, nonce)
            cgroups.create(group)
            return Path(tree)

        tree = await asyncio.to_thread(prepare)
        spec = start_plan.start_spec(row, plan, places, tree, group=group, size=size)
        pid = await self._launcher.carry_out(spec)
        entry = RuntimeRecord(
            row=row,
            boot_id=procfs.boot_id(),
            init_pid=pid,
            init_start=procfs.stat(pid).start_ticks,
            cgroup=group,
            overlays=spec.overlays,
            binds=spec.binds,
            proc_readonly=spec.proc_readonly,
            env=spec.env,
            nonce=nonce,
            left_out=plan.left_out,
        )
        folder = record.make_folder(places.sessions, row.session)
        live = LiveSession(entry, folder, self._launcher)
        record.save(folder, entry)
        self._enlist(live)
        return live

    async def _undo_start(self, row: LiveRow) -> None:
        group = self._places.cgroup_of(row.session)

        def undo() -> None:
            _end_processes(group)
            record.remove_folder(self._places.sessions, row.session)
            sealing.discard(self._pool, self._names, row)

        # The first error is the one to tell; what is left is swept at the next start.
        with contextlib.suppress(WaypointError, OSError):
            await asyncio.to_thread(undo)

    def _enlist(self, live: LiveSession) -> None:
        self._live[live.branch] = live
        live.watch(lambda: self._begin_ending(live, "crashed"))
        self.on_activity()

    def _begin_ending(
        self, live: LiveSession, reason: EndReason, *, discard: bool = False
    ) -> asyncio.Task[Capture | None]:
        """End `live` in a task of its own, once: a client that goes away does not stop it half-way."""
        if live.ending is None:
            live.ending = asyncio.ensure_future(self._end(live, reason, discard=discard))
            self._endings.add(live.ending)
            live.ending.add_done_callback(self._endings.discard)
        return live.ending

    async def _end(self, live: LiveSession, reason: EndReason, *, discard: bool) -> Capture | None:
        row = live.record.row
        try:
            await asyncio.to_thread(_end_processes, live.record.cgroup)
            await live.wait_drained()
            status = sealing.read_exit_status(self._pool.path(row.tree))
            capture = None
            if discard:
                await asyncio.to_thread(sealing.discard, self._pool, self._names, row)
            else:
                capture = await asyncio.to_thread(sealing.seal, self._pool, self._names, row, reason)
        finally:
            if self._live.get(live.branch) is live:
                del self._live[live.branch]
        closing = asyncio.ensure_future(self._close(live, status))
        self._endings.add(closing)
        closing.add_done_callback(self._endings.discard)
        return capture

    async def _close(self, live: LiveSession, status: int | None) -> None:
        await live.close(status)
        record.remove_folder(self._places.sessions, live.record.row.session)

    async def stop(self, branch: str, *, discard: bool) -> Capture | None:
        """End the session on `branch`, keeping its files unless `discard`. Returns the new tip."""
        live = self.get(branch)
        async with self._lock(branch):
            return await asyncio.shield(self._begin_ending(live, "stopped", discard=discard))

    def adopt_all(self) -> None:
        """Find the sessions that outlived the last daemon, and end those that did not. Called once, before anything
        else.
        """
        known = set()
        for row in self._names.live():
            known.add(row.session)
            folder = self._places.sessions / row.session
            entry = record.load(folder)
            if entry is not None and entry.is_alive():
                with contextlib.suppress(OSError):  # it ended between the two looks
                    self._enlist(LiveSession.adopt(entry, folder, self._launcher))
                    continue
            _end_processes(self._places.cgroup_of(row.session))
            sealing.seal(self._pool, self._names, row, _how_lost(entry))
            record.remove_folder(self._places.sessions, row.session)
        for name in os.listdir(self._places.sessions):
            if name not in known:
                record.remove_folder(self._places.sessions, name)

    async def facts(self, *, all_branches: bool) -> list[SessionFacts]:
        rows = list(await asyncio.gather(*(facts.of_live(live, self._pool) for live in self.live)))
        if all_branches:
            for branch in self._names.branches():
                if branch.name not in self._live and branch.tip:
                    rows.append(facts.of_capture(branch.name, branch.created, self._names.capture(branch.tip)))
        return sorted(rows, key=lambda row: row.branch)

    async def close(self) -> None:
        """Let go of everything; the sessions go on without a reader."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=ENDING_S)
        for live in self.live:
            live.release()

    def _lock(self, branch: str) -> asyncio.Lock:
        return self._busy.setdefault(branch, asyncio.Lock())


def plan_setting(request: StartRequest, uid: int, origin: Setting | None) -> Setting:
    """What the session will be: what was asked for, else what its origin was, else the defaults."""
    base = os.path.realpath(request.base) if request.base else (origin.base if origin else "/")
    if not os.path.isdir(base):
        raise UsageProblem("start a session on", f"base {request.base}", "it is not a directory", "give --base DIR")
    if origin and request.base and base != origin.base:
        raise UsageProblem(
            "go on with another base",
            base,
            f"the branch was made on {origin.base}",
            "start a new branch for another base",
        )
    user = (
        find_user(base, request.user) if request.user else (origin.user if origin else find_user(base, user_name(uid)))
    )
    binds = [start_plan.parse_bind(text) for text in request.binds] or (origin.binds if origin else [])
    return Setting(
        base=base,
        binds=binds,
        net=request.net or (origin.net if origin else "private"),
        user=user,
        cwd=request.cwd or (origin.cwd if origin else user.home),
        env=start_plan.taken_env(request.env),
        command=request.command,
    )


def _how_lost(entry: RuntimeRecord | None) -> EndReason:
    return "crashed" if entry is not None and entry.boot_id == procfs.boot_id() else "lost"


def _end_processes(group: str) -> None:
    """SIGKILL everything in the session's cgroup and wait until it is gone; then remove the group."""
    if os.path.isdir(group):
        cgroups.kill(group)
        cgroups.wait_empty(group)
        cgroups.remove(group)
