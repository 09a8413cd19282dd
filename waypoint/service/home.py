"""The home: everything that the daemon has opened. Each service function takes it as its first argument.

Opened once, in the daemon's private mount namespace, by the process that holds the home's lock.
"""

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from waypoint import __version__
from waypoint.branch.removal import Policy
from waypoint.capture import steps
from waypoint.capture.captures import Captures
from waypoint.egress import router
from waypoint.egress.egress import Egress
from waypoint.egress.published import Publisher
from waypoint.launch.criu_process import CriuSpawner
from waypoint.launch.ground.id_choice import find_first
from waypoint.launch.ground.limits import fill_in
from waypoint.launch.ground.places import SharedPlaces, make_places, remove_group
from waypoint.launch.ground.start_plan import plan_overlays
from waypoint.launch.launcher_link import Launcher
from waypoint.launch.templates import Templates
from waypoint.linux.calls import abilities
from waypoint.linux.storage import files, filesystem
from waypoint.model.activity import SessionEvent
from waypoint.model.conditions import Degradation
from waypoint.model.errors import Failed, HostLacks, StoreDamaged, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.paths import SET_UP_BY_ROOT, config_path, home_id, runtime_folder
from waypoint.model.records import HOST_IDS, Capture, IdMap, Operation, SessionLimits
from waypoint.model.requests import Number
from waypoint.model.session_facts import StatusFacts, StrangerFacts
from waypoint.model.times import iso_time
from waypoint.processes.criu.rpc import CriuProgram
from waypoint.records.failures import how_to_move_away
from waypoint.records.names import Names
from waypoint.records.reserve import Reserve
from waypoint.service.background.events import Events
from waypoint.service.background.growth import PoolWatch
from waypoint.service.background.host_watch import HostWatch
from waypoint.service.background.jobs import Jobs
from waypoint.service.background.rest_shares import RestShares
from waypoint.service.change_counts import ChangeCounts
from waypoint.service.keeping import Keeping
from waypoint.service.moving import Moving
from waypoint.service.standing_by import StandingBy
from waypoint.service.storing import Storing
from waypoint.session import applying
from waypoint.session.adopt import adopt_all, end_dumps
from waypoint.session.birth import rights, standby
from waypoint.session.live.pending_records import PendingRecords
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.live.standbys import Standbys
from waypoint.session.registry import Registry, SessionChange
from waypoint.session.undo import complete_interrupted
from waypoint.session.user_mounts import UserMounts
from waypoint.setup import config as config_file
from waypoint.setup import criu_find, vanished
from waypoint.setup.rows import WITHOUT_ROOT
from waypoint.setup.trials import trial
from waypoint.terminal.inside.spool import Answer
from waypoint.upper.contract import Pool, PoolSizes
from waypoint.upper.open_pool import has_pool, open_pool
from waypoint.upper.pool_image import FOLDER, IMAGE, PoolInUse

KEEP_OPERATIONS_S = 7 * 86400.0
RELIEVE_S = 10.0
COMPACT_S = 5.0
"""Seconds from the end of the last session to the compaction of the pool: another session often follows at once."""
log = logging.getLogger(__name__)


class Relief(NamedTuple):
    """Makes room when the disk runs short, or captures exceed a budget (housekeeping.py). `begin`: starts that in the
    background; `whole`: frees all that can be freed, and returns whether anything was; `is_due`: whether a budget is
    exceeded and something can be done about it (blocks).
    """

    begin: Callable[["Home"], None]
    whole: Callable[["Home"], Awaitable[bool]]
    is_due: Callable[["Home"], bool]


class UndoMeasured(NamedTuple):
    """The last exact measurement of what only undo needs (undo_space.py). `at`: by the monotonic clock. `most_bytes`:
    the upper bound at that time.
    """

    at: float
    most_bytes: int
    found_bytes: int


class Deadlines(Protocol):
    """Parks sessions by themselves (deadlines.py)."""

    def watch(self, live: LiveSession) -> None: ...

    async def close(self) -> None: ...


class Auto(Protocol):
    """Makes points at prompts (auto_points.py)."""

    def watch(self, live: LiveSession, *, is_new: bool) -> None: ...

    async def close(self) -> None: ...


InsideService = Callable[["Home", LiveSession, list[str]], Awaitable[Answer]]
"""Answers a request of a session's own processes: service.inside.serving."""


class Home:
    """The state that the service functions work on. Made by `open`.

    `stop_daemon`: asks the process to end; set by the daemon. `relief`: makes room when the disk runs short
    (housekeeping.py).
    """

    def __init__(self, path: Path, config: "_Config", criu: str | None, host_mounts: int | None) -> None:
        """`criu`: the path of a CRIU that was chosen, None: any that works. `host_mounts`: as for `make_places`."""
        self.path = path
        self.started = time.time()
        self.users: HomeUsers = config
        self.keeping = _keeping(path, config)
        self.stop_daemon: Callable[[], None] = lambda: None
        self.relief: Relief | None = None
        self.relieving = ""  # the id of the job that `relief` has begun last
        self.undo_measured: UndoMeasured | None = None
        self._auto: Auto | None = None
        self._deadlines: Deadlines | None = None
        self._relieved_at = float("-inf")
        self._compaction: asyncio.TimerHandle | None = None
        self.strangers: list[StrangerFacts] = []
        # By id: captures that are recorded as removed, but whose files are still on disk. Only a `gc` job uses this.
        self.due_for_removal: dict[str, Capture] = {}
        self.events = Events(asyncio.get_running_loop())
        self.jobs = Jobs(self.events)

        runtime = Path(runtime_folder(str(path)))
        self._places = places = make_places(path, runtime, home_id(str(path)), config.ids.first, host_mounts)._replace(
            filters=config.seccomp
        )
        self._launcher = Launcher(places.limiter.entered, merges=config.merge_memory)
        self._host_watch = HostWatch(places.host, self._tell_mounts) if places.host is not None else None

        reserve = Reserve(path)
        reserve.make_room()
        self.names = Names(path / "names.db", reserve)
        self.names.on_operation = self._tell_operation
        _check_pool(path, self.names)
        self.pool = _open_pool(path, config.pool, reserve, places.cgroup)
        self.rest = RestShares(self.pool, lambda: [live.record.row for live in self.sessions.live])
        self._watch = self._pool_watch()

        find_criu = criu_find.remembered(functools.partial(_find_criu, path, criu))
        spawner = CriuSpawner(self._launcher, str(places.kit.criu_run), places.dumps)
        self.captures = Captures(
            *(path, self.pool, self.names, find_criu, spawner.beside, self._watch.writing), profiles=places.profiles
        )
        self.storing = Storing(self.names, self.captures, self.jobs, self._keep_to_budgets)
        self.moving = _open_moving(self.captures, self.storing, places, config)
        router_place = router.Place(path, places.runtime, places.cgroup, places.ids.owner_of_router(), host_mounts)
        self.egress = Egress(router_place)
        self.sessions = Registry(
            Resources(
                places=self._places,
                names=self.names,
                pool=self.pool,
                writing=self._watch.writing,
                relieve=self._relieve_whole,
                captures=self.captures,
                launcher=self._launcher,
                criu=spawner,
                templates=Templates(spawner),
                pending_records=PendingRecords(),
                egress=self.egress,
                published=Publisher(router_place.owner, host_mounts),
                standbys=Standbys(),
                trusted=config.trusted_uid,
            )
        )

        self.standing_by, self.mounts = StandingBy(self.sessions, config.standbys), UserMounts(self.sessions.resources)
        self.counts = ChangeCounts(self.sessions.resources, self.captures)

    @classmethod
    async def open(  # noqa: PLR0913  # each is independent of the others
        cls,
        path: str,
        host_mounts: int | None = None,
        *,
        criu: str | None = None,
        pause_at: str = "",
        serve_inside: "InsideService | None" = None,
        relief: "Relief | None" = None,
        auto: "Callable[[Home], Auto] | None" = None,
        deadlines: "Callable[[Home], Deadlines] | None" = None,
    ) -> "Home":
        """Open the home at `path` (created if missing) and adopt the sessions that outlived the last daemon.

        `host_mounts`: a descriptor of the machine's mount namespace, whose changes the caller's mount namespace is to
        follow; it must stay open. `criu`: the value of WAYPOINT_CRIU. `pause_at`: the value of WAYPOINT_PAUSE_AT
        (capture/steps.py). `serve_inside`, `relief`, `auto`, `deadlines`: None if requests of sessions' processes are
        not served, no room is made, no points are made at prompts, or no sessions are parked by themselves.
        """
        steps.arm(pause_at)
        os.makedirs(path, mode=0o700, exist_ok=True)
        config = _config(path)
        home = cls(Path(path).resolve(), config, criu, host_mounts)
        if not home.names.live():
            home._launcher.open()  # it starts in the background, while the sessions that wait for a daemon are adopted
        if serve_inside is not None:
            home.sessions.serve_inside = functools.partial(serve_inside, home)
        home._watch.start()  # before adopting, since the sessions of the last daemon write all the time
        await asyncio.to_thread(end_dumps, home.sessions.resources)
        home.strangers = adopt_all(home.sessions)
        await asyncio.to_thread(applying.recover, home.sessions.resources)
        await asyncio.to_thread(home.mounts.adopt)
        home._compact_later()
        home.storing.later()
        home.moving.later()
        await asyncio.to_thread(home.captures.note_lost)
        home.relief = relief
        home.sessions.resources.pending_records.on_written = home._compact_later
        home.sessions.on_change = home._tell_session  # only now: adopted sessions are not announced
        home._auto = auto(home) if auto is not None else None
        home._deadlines = deadlines(home) if deadlines is not None else None
        for live in home.sessions.live:
            home._watch_session(live, is_new=False)
        home._launcher.open()
        if home._host_watch is not None:
            home._host_watch.start()
        await complete_interrupted(home.sessions)
        if abilities.own().owners:  # else there is no other home below this runtime folder
            asyncio.get_running_loop().run_in_executor(None, vanished.remove_all)
        return home

    def _pool_watch(self) -> PoolWatch:
        later = asyncio.get_running_loop().call_soon_threadsafe
        return PoolWatch(
            self.pool,
            self._places.cgroup,
            lambda: later(self.relieve_later),
            lambda left_bytes: later(self.rest.share, left_bytes),
        )

    def present_strangers(self) -> list[StrangerFacts]:
        """The strangers (capture/sweeping.py) that were found when the daemon started and are still there."""
        return [stranger for stranger in self.strangers if os.path.lexists(stranger.path)]

    def relieve_later(self) -> None:
        """Remove captures to make room, at most once in RELIEVE_S. If the last time is more recent, do so when
        RELIEVE_S is over, because no further call may follow.
        """
        loop = asyncio.get_running_loop()
        if self._relieved_at > loop.time():  # planned already
            return
        self._relieved_at = max(loop.time(), self._relieved_at + RELIEVE_S)
        loop.call_at(self._relieved_at, self._relieve)

    def _relieve(self) -> None:
        if self.relief is not None:
            self.relief.begin(self)

    async def _keep_to_budgets(self) -> None:
        """Begin to make room, if captures exceed one of the budgets."""
        if self.relief is None:
            return
        try:
            if await asyncio.to_thread(self.relief.is_due, self):
                self.relieve_later()
        except (WaypointError, OSError) as error:
            log.error("the space of captures cannot be measured: %s", error)

    async def _relieve_whole(self) -> bool:
        return self.relief is not None and await self.relief.whole(self)

    def left_out(self) -> list[Degradation]:
        """Return the mounts of the machine that a new session would lack, each with the reason. Blocks."""
        self._places.follow_host()
        return plan_overlays("/", self._places).left_out

    def why_host_ids(self) -> str:
        """Return why a new session would have the host's ids; "" if its ids would be shifted. Blocks."""
        plan = plan_overlays("/", self._places)
        pool = os.path.dirname(self.pool.path(new_id()))
        return self._places.ids.why_not([*plan.overlays, str(self.path), pool])

    def unlimited(self) -> list[Degradation]:
        """Return which limits of a new session the machine would not enforce."""
        ids = HOST_IDS if self.why_host_ids() else IdMap(first=1)
        asked = SessionLimits(cpus=1.0)  # there is no usual limit of processors
        return self._places.limiter.of_session(asked).unlimited(fill_in(asked), ids)

    def _tell_operation(self, entry: Operation) -> None:
        self.events.tell_operation(entry)
        self.storing.later()
        self.moving.later()
        self.standing_by.note_operation(entry)

    def _tell_mounts(self) -> None:
        self.standing_by.later()

    def _tell_session(self, change: SessionChange, live: LiveSession) -> None:
        record = live.record
        self.events.publish(
            SessionEvent, change=change, branch=live.branch, session=record.row.session, pid=record.init_pid
        )
        if change == "ended":
            self.standing_by.later()
            self._compact_later()
        else:
            self._watch_session(live, is_new=change == "started")
            if self.rest.bytes is not None:
                self.rest.apply()

    def _watch_session(self, live: LiveSession, *, is_new: bool) -> None:
        if self._auto is not None and live.record.row.setting.auto:
            self._auto.watch(live, is_new=is_new)
        if self._deadlines is not None:
            self._deadlines.watch(live)

    def is_idle(self) -> bool:
        """True if no session lives, and none is being started."""
        return not self.names.live() and not self.names.live(ready=False)

    def _compact_later(self) -> None:
        """Give the pool's free space back to the disk after COMPACT_S, if no session lives then."""
        loop = asyncio.get_running_loop()
        if self._compaction is not None:
            self._compaction.cancel()
        self._compaction = loop.call_later(COMPACT_S, self._begin_compaction)

    def _begin_compaction(self) -> None:
        if not self.sessions.running:  # the end of the last one calls `_compact_later` again
            asyncio.get_running_loop().run_in_executor(None, self._compact)

    def _compact(self) -> None:
        try:
            self.pool.compact(self.is_idle)
        except WaypointError as error:
            log.error("the pool's free space is not given back to the disk: %s", error)

    async def shutdown(self) -> None:
        """Close everything when streams and requests have ended. The process exits afterwards; sessions continue."""
        self.relief = None
        if self._deadlines is not None:
            await self._deadlines.close()
        if self._auto is not None:
            await self._auto.close()
        await self.standing_by.close()
        await self.moving.flush()
        await asyncio.to_thread(self.storing.close)
        await asyncio.to_thread(self.counts.close)
        if self._compaction is not None:
            self._compaction.cancel()
        if self._host_watch is not None:
            await self._host_watch.stop()
        await self.jobs.close()
        await self.egress.close()
        await self.sessions.resources.published.close()
        await asyncio.to_thread(self.sessions.resources.templates.close)
        await self.sessions.close()
        # No `await` from here on: streams that must end with the process would run on and send an `x` frame.
        if not self.sessions.running:
            router.end(self._places.runtime)
        self._watch.stop()
        self._launcher.close()
        self.captures.close_memory()
        self.pool.close()
        self.names.close()
        if not self.sessions.running:
            remove_group(self._places.cgroup)


async def status(home: Home) -> StatusFacts:
    """Return facts about the daemon."""
    problem = None
    try:
        await asyncio.to_thread(home.pool.check_writable)
    except WaypointError as error:
        problem = error.to_json()
    return StatusFacts(
        pid=os.getpid(),
        version=__version__,
        home=str(home.path),
        sessions=len(home.sessions.live),
        started=iso_time(home.started),
        pool=home.pool.driver,
        problem=problem,
        disk_bytes=filesystem.usable_bytes(home.path),
        free_bytes=filesystem.free_bytes(home.path),
        standbys=len(ready := home.sessions.resources.standbys.all),
        standby_bytes=sum(standby.size_of(one.origin) for one in ready),
        share_bytes=home.rest.bytes,
    )


async def strangers(home: Home) -> list[StrangerFacts]:
    return home.present_strangers()


async def stop_daemon(home: Home) -> None:
    """Ask the daemon and its supervisor to end; sessions continue, streams of other clients end. Raises NotAllowed for
    users who may use only their own sessions.
    """
    said = "commands of other users would end with it"
    rights.check_unrestricted(home.sessions.resources, "stop", f"the daemon of {home.path}", said)
    home.stop_daemon()


def _open_moving(captures: Captures, storing: Storing, places: SharedPlaces, config: "_Config") -> Moving:
    within = places.host.within if places.host is not None and abilities.own().memory_area else None
    captures.open_memory(config.hot_memory_bytes, within, places.ids.why_not if config.ids.first else None)
    return Moving(captures, storing)


def _find_criu(home: Path, chosen: str | None) -> CriuProgram:
    if abilities.own().dumps:
        return criu_find.find(home, tries=functools.partial(trial, home=home), chosen=chosen)
    raise HostLacks("save", "processes", WITHOUT_ROOT, SET_UP_BY_ROOT, code="no-root")


def _open_pool(home: Path, sizes: PoolSizes | None, reserve: Reserve, group: str) -> Pool:
    """`group`: the cgroup of the sessions, which must end first if the pool cannot be opened before."""
    try:
        return open_pool(home, "auto", sizes, reserve.make_room)
    except PoolInUse as error:
        next_step = (
            f"end the sessions, which can write no file any more: 'echo 1 > {group}/cgroup.kill'; then repeat the "
            "command: the files are as they were before the failure"
        )
        raise Failed(error.tried, error.on, error.said, next_step, code=error.code) from error


def _check_pool(home: Path, names: Names) -> None:
    """Raise StoreDamaged if the home's pool is missing although names.db has captures or sessions in it. A new pool
    would be in the way when the old one is put back.
    """
    if has_pool(home):
        return
    known = len(names.captures()) + len(names.live())
    if known:
        said = f"it does not exist, but {home}/names.db lists {known} captures and sessions with files in it"
        next_step = (
            f"put the pool back ({IMAGE}, or the folder {FOLDER}); or begin without it: {how_to_move_away(names.path)}"
        )
        raise StoreDamaged("open", f"the pool of {home}", said, next_step)


class _Ids(msgspec.Struct):
    """`first`: the first id of the home's range (launch/ground/id_choice.py); 0: all sessions have the host's ids."""

    first: int


class HomeUsers(msgspec.Struct):
    """The users besides root who may use the home. `trusted_uid`: the user with all rights of root; None: nobody."""

    owner_uid: int | None = None
    group_gid: int | None = None
    trusted_uid: int | None = None


class _Config(HomeUsers, kw_only=True):
    """The daemon's part of config.json. `pool`: the sizes of a pool file, None: the usual ones. `keep_operations_s`:
    for how many seconds an operation can be undone, even after a `gc`. `keep_last`, `keep_daily`: which captures of
    each branch a `gc` keeps (branch/removal.py). `hot_budget_bytes`: what captures may take on disk that are in the
    store, too; None: a quarter of the disk. `undo_budget_bytes`: what captures may take that only undo needs; None: a
    tenth of the disk. `hot_memory_bytes`: the size of the hot area in memory (capture/layers/hot_memory.py); None: an
    eighth of the memory. `seccomp`: whether new sessions get a filter of system calls. `merge_memory`: whether the
    kernel may merge equal memory of new sessions (KSM). `standbys`: how many frozen copies of checkpoints may be kept
    ready (standing_by.py); None: AUTOMATIC.
    """

    ids: _Ids
    pool: PoolSizes | None = None
    keep_operations_s: float = KEEP_OPERATIONS_S
    hot_budget_bytes: Number | None = None
    undo_budget_bytes: Number | None = None
    hot_memory_bytes: Number | None = None
    keep_last: Number = 0
    keep_daily: Number = 0
    seccomp: bool = True
    merge_memory: bool = False
    standbys: Number | None = None


def _keeping(home: Path, config: _Config) -> Keeping:
    whole, hot, undo = filesystem.total_bytes(home), config.hot_budget_bytes, config.undo_budget_bytes
    return Keeping(
        operations_s=config.keep_operations_s,
        policy=Policy(config.keep_last, config.keep_daily),
        hot_bytes=whole // 4 if hot is None else hot,
        undo_bytes=whole // 10 if undo is None else undo,
    )


def _config(home: str) -> _Config:
    """Read config.json. A home without a range of ids gets one, which is written to config.json; a full disk is no
    error, since a home must open even then. Raises Failed if config.json cannot be used.
    """
    path, found = config_path(home), config_file.read(Path(home))
    if "ids" not in found:
        found["ids"] = {"first": find_first(home_id(home))}
        with contextlib.suppress(OSError):
            files.publish(path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    try:
        return msgspec.convert(found, _Config)
    except msgspec.ValidationError as error:
        raise config_file.broken(Path(home), str(error)) from error
