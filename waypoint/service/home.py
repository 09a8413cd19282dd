"""The home: everything that the daemon has opened, handed to each service function as its first argument.

Opened once, in the daemon's private mount namespace, by the one process that holds the home's lock.
"""

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from waypoint import __version__
from waypoint.capture import steps
from waypoint.capture.base_files.mentioned import BaseFile
from waypoint.capture.captures import Captures, Held, look_for_torn
from waypoint.capture.in_memory.settling import SETTLE_AFTER_S
from waypoint.capture.storing.orders import MOST_OF_BASE
from waypoint.egress.egress import Egress
from waypoint.egress.published import Publisher
from waypoint.egress.router import Site
from waypoint.launch.criu_process import CriuSpawner
from waypoint.launch.ground.id_choice import find_first
from waypoint.launch.ground.limits import fill_in
from waypoint.launch.ground.places import make_places, remove_group
from waypoint.launch.ground.start_plan import plan_overlays
from waypoint.launch.launcher_link import Launcher
from waypoint.launch.spec import Will
from waypoint.linux.calls import powers
from waypoint.linux.storage import files
from waypoint.model.activity import SessionEvent
from waypoint.model.errors import Failed, StoreDamaged, WaypointError
from waypoint.model.facts import StatusFacts, StrangerFacts
from waypoint.model.ids import new_id
from waypoint.model.paths import config_path, home_id, runtime_folder, socket_path
from waypoint.model.records import HOST_IDS, Capture, IdMap, Operation, SessionLimits
from waypoint.model.times import iso_time
from waypoint.service.background import user_places
from waypoint.service.background.events import Events
from waypoint.service.background.growth import PoolWatch
from waypoint.service.background.host_watch import HostWatch
from waypoint.service.background.jobs import Jobs
from waypoint.service.background.order_process import KeptPrograms
from waypoint.service.background.user_places import PlacesForAll, UserPlaces
from waypoint.service.durable.home_shelves import shelves_beside
from waypoint.session.adopt import adopt_all
from waypoint.session.birth import rights
from waypoint.session.live.overdue import Overdue
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.registry import Registry, SessionChange
from waypoint.setup import config as config_file
from waypoint.setup import criu_find
from waypoint.setup.trials import trial
from waypoint.store.failures import how_to_move_away
from waypoint.store.names import Names
from waypoint.store.reserve import Reserve
from waypoint.terminal.inside.spool import Answer
from waypoint.upper.contract import PoolSizes
from waypoint.upper.open_pool import has_pool, open_pool
from waypoint.upper.pool_image import FOLDER, IMAGE

KEEP_OPERATIONS_S = 7 * 86400.0
DURABLE_AFTER_S = 15.0
RELIEVE_S = 10.0


class Upkeep(NamedTuple):
    """What a home needs done beside what is asked of it (housekeeping.py). `begin`: begins to make room where the disk
    runs short; `whole`: frees all that can be, and returns whether that is anything. `recall`: brings back what was
    removed because the store has it; `bring_base`: files of the base that processes have. `keeper`: makes what puts
    captures into the store. `recover`: sees to what a killed daemon has left half done of the machine's files.
    """

    begin: Callable[["Home"], None]
    whole: Callable[["Home"], Awaitable[bool]]
    recall: Callable[["Home", Held], Awaitable[None]]
    bring_base: Callable[["Home", Held, str], Awaitable[list[BaseFile]]]
    keeper: Callable[["Home"], "Keeper"]
    recover: Callable[["Home"], None]


class Keeper(Protocol):
    """Puts what names stand for into the store (durable/by_itself.py)."""

    def later(self) -> None:
        """A name may stand for something else now."""

    async def close(self) -> None:
        """Begin nothing more."""

    async def settle(self) -> None:
        """No job is to begin any more. Called again when nothing is captured any more. Does not raise."""


InsideService = Callable[["Home", LiveSession, list[str]], Awaitable[Answer]]
"""What a session's own processes ask, and what they get: service.inside.serving."""


class Home:
    """What the service functions work on. Made by `open`, from then on complete.

    `stop_daemon`: asks the process to end; set by the daemon. `upkeep`: makes room when the disk runs short
    (housekeeping.py). `between`: waits as long as a session stands still; called in a worker thread before each piece
    of a long list is made. `stands_still`: whether a session stands still; does not wait. `places_inside`: one is held
    while a request of a session's own processes is served, and one of `staging` while it copies what it attaches.
    """

    def __init__(self, path: Path, config: "HomeConfig", criu: str | None, host_mounts: int | None) -> None:
        """`criu`: the path of a CRIU that was chosen, None: any that works. `host_mounts`: as for `make_places`."""
        self.path = path
        self.started = time.time()
        self.stop_daemon: Callable[[], None] = lambda: None
        self.upkeep: Upkeep | None = None
        self._keeper: Keeper | None = None
        self._relieved_at = float("-inf")
        self.free_in_vain_bytes = 0  # what was free in the pool after its last shrink where the disk ran short
        self.config = config
        self.strangers: list[StrangerFacts] = []
        self.due_for_removal: dict[str, Capture] = {}  # by id: off the record, not yet off the disk; for a `gc` job
        places = make_places(path, Path(runtime_folder(str(path))), home_id(str(path)), config.ids.first, host_mounts)
        self._places = places._replace(filters=config.seccomp)
        self.profiles = places.profiles
        self._launcher = Launcher(places.limiter.entered)
        self._host_watch = HostWatch(self._places.host) if self._places.host is not None else None
        self.places_inside = PlacesForAll(user_places.INSIDE, user_places.INSIDE_OF_USER)
        self.staging = PlacesForAll(user_places.STAGING, user_places.STAGING_OF_USER)
        self.exports, self.copies = UserPlaces(user_places.EXPORTS), UserPlaces(user_places.COPIES)
        self.events = Events(asyncio.get_running_loop())
        self.jobs, self.kept_programs = Jobs(self.events), KeptPrograms(places.store)
        reserve = Reserve(path)
        reserve.make_room()
        self.names = Names(path / "names.db", reserve)
        self.names.on_operation = self._tell_operation
        _check_pool(path, self.names)
        self.pool = open_pool(path, "auto", config.pool, reserve.make_room)
        later = functools.partial(self.events.loop.call_soon_threadsafe, self.relieve_later)
        self._watch = PoolWatch(self.pool, self._places.cgroup, later)
        tries = functools.partial(trial, home=path)
        find_criu = criu_find.remembered(lambda: criu_find.find(path, tries=tries, chosen=criu))
        spawner = CriuSpawner(self._launcher, str(self._places.kit.criu_run), self._places.dumps)
        self.captures = Captures(path, self.pool, self.names, find_criu, spawner.beside, places.profiles)
        self.between: Callable[[], None] = self.captures.quiet.wait
        self.stands_still: Callable[[], bool] = self.captures.quiet.stands_still
        at, overdue, writing = self._places, Overdue(), self._watch.writing
        self.egress = Egress(Site(at.runtime, at.routers, at.ids.owner_of_router(), host_mounts))
        self._publisher = Publisher(at.published, at.ids.owner_of_router())
        resources = Resources(
            *(at, self.names, self.pool, writing, self._relieve_whole, self.captures, self._launcher, spawner),
            *(overdue, self.egress, self._publisher),
            trusted=config.trusted_uid,
        )
        self.sessions = Registry(resources)

    @property
    def users(self) -> "HomeUsers":
        """Who may use the home, and is trusted fully, by what holds until this daemon ends."""
        owner, group = os.geteuid(), None
        with contextlib.suppress(FileNotFoundError):  # the socket's name was removed, so nobody else can connect
            owner, group = files.who_is_let_in(socket_path(str(self.path)))
        return HomeUsers(owner, group, self.sessions.resources.trusted)

    @property
    def is_behind(self) -> bool:
        """Whether config.json gives others rights than `users`, or captures other room: from the next daemon on."""
        with contextlib.suppress(Failed):
            asked, has = _config(str(self.path)), self.config
            room = (asked.hot_budget_bytes, asked.hot_memory_bytes) != (has.hot_budget_bytes, has.hot_memory_bytes)
            return room or HomeUsers(asked.owner_uid or 0, asked.group_gid, asked.trusted_uid) != self.users
        return False

    @classmethod
    async def open(
        cls,
        path: str,
        host_mounts: int | None = None,
        criu: str | None = None,
        pause_at: str = "",
        serve_inside: "InsideService | None" = None,
        upkeep: "Upkeep | None" = None,
    ) -> "Home":
        """Open the home at `path` (made if it is not there) and find the sessions that outlived the last daemon.

        `host_mounts`: a descriptor of the machine's mount namespace, if the caller's is to follow it; it must stay
        open. `criu`: the value of WAYPOINT_CRIU. `pause_at`: that of WAYPOINT_PAUSE_AT (capture/steps.py).
        `serve_inside`: what answers the sessions' own processes; None: nothing does. `upkeep`: what makes room where
        the disk runs short; None: nothing does.
        Raises WaypointError, OSError.
        """
        steps.arm(pause_at)
        os.makedirs(path, mode=0o700, exist_ok=True)
        config = _config(path)
        home = cls(Path(path).resolve(), config, criu, host_mounts)
        if not home.names.live():
            home._launcher.open()  # it gets ready while the daemon does; but sessions that wait for a daemon go first
        if serve_inside is not None:
            home.sessions.serve_inside = functools.partial(serve_inside, home)
        home._watch.start()  # before anything that may take long, since the sessions of the last daemon go on writing
        home.strangers = adopt_all(home.sessions, shelves_beside(home.path, home.names))
        home.captures.settling.memory.open(config.hot_memory_bytes)
        with contextlib.suppress(OSError):  # the disk is full: nothing is known then
            await asyncio.to_thread(look_for_torn, home.captures, home.names)
        home.upkeep = upkeep
        home.captures.shown = home._places.shown
        home.captures.quiet.gate = home.kept_programs.gate
        if upkeep is not None:
            home.captures.recall = functools.partial(upkeep.recall, home)
            home.captures.bring_base = functools.partial(upkeep.bring_base, home)
            home._keeper = upkeep.keeper(home)
            home._keeper.later()
            upkeep.recover(home)
        home.sessions.on_change = home._tell_session  # set only now: adopted sessions are no news
        home._launcher.open()
        if home._host_watch is not None:
            home._host_watch.start()
        return home

    def leave_will(self, argv: list[str], env: dict[str, str], mounts_fd: int) -> None:
        """Have the program `argv` started, in the mount namespace `mounts_fd`, if this process dies and nobody listens
        on the home's socket any more. The descriptor must stay open.
        """
        self._launcher.leave_will(Will(socket=socket_path(str(self.path)), argv=argv, env=env), mounts_fd)

    def present_strangers(self) -> list[StrangerFacts]:
        """What lay in the home when the daemon started, is unknown to names.db, and still lies there."""
        known = self.names.images() if self.strangers else []  # some were put anew
        return [one for one in self.strangers if os.path.lexists(one.path) and one.id not in known]

    def relieve_later(self) -> None:
        """The pool has too little room, or something is due for removal: have room made, once in RELIEVE_S. If that is
        not over, it is made then: who has written may be at rest by that time, and nobody would ask again.
        """
        loop = asyncio.get_running_loop()
        if self._relieved_at > loop.time():  # that is going to happen
            return
        self._relieved_at = max(loop.time(), self._relieved_at + RELIEVE_S)
        loop.call_at(self._relieved_at, self._relieve)

    def _relieve(self) -> None:
        if self.upkeep is not None:
            self.upkeep.begin(self)

    async def _relieve_whole(self) -> bool:
        return self.upkeep is not None and await self.upkeep.whole(self)

    def left_out(self) -> list[str]:
        """The mounts of the machine that a session on it would not have now, each with the reason. Blocks."""
        self._places.follow_host()
        return plan_overlays("/", self._places).left_out

    def why_host_ids(self) -> str:
        """In words, why a session on the machine would have the host's ids now; "" if they would be shifted. Blocks."""
        plan = plan_overlays("/", self._places)
        pool = os.path.dirname(self.pool.path(new_id()))
        return self._places.ids.why_not([*plan.overlays, str(self.path), pool])

    def unlimited(self) -> list[str]:
        """In words, which limits of a new session the machine would not hold."""
        ids = HOST_IDS if self.why_host_ids() else IdMap(first=1)
        asked = SessionLimits(cpus=1.0)  # there is no usual limit of processors
        return self._places.limiter.of_session(asked).unlimited(fill_in(asked), ids)

    def _tell_operation(self, operation: Operation) -> None:
        self.events.tell_operation(operation)
        if self._keeper is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.events.loop.call_soon_threadsafe(self._keeper.later)

    def _tell_session(self, change: SessionChange, live: LiveSession) -> None:
        record = live.record
        self.events.publish(
            SessionEvent, change=change, branch=live.branch, session=record.row.session, pid=record.init_pid
        )

    async def shutdown(self) -> None:
        """The last call: requests have ended. The process exits after it; sessions go on."""
        self.upkeep = None
        if self._host_watch is not None:
            await self._host_watch.stop()
        if self._keeper is not None:
            await self._keeper.close()
            await self._keeper.settle()  # a part of it before others use up the time that there is
        await self.jobs.close()
        self.captures.quiet.gate = None
        await self.kept_programs.close()
        await self.sessions.settle()
        if self._keeper is not None:
            await self._keeper.settle()
        self._publisher.close()
        await self.egress.close(is_used=bool(self.sessions.unreachable))
        # No `await` from here on: a stream that is to break off with the process would run on, and send its own end.
        self.sessions.release()
        self._watch.stop()
        self._launcher.close()
        self.captures.torn.stop(self.captures.measures.written)
        self.pool.close()
        self.names.close()
        if not self.sessions.running:
            remove_group(self._places.cgroup)


async def status(home: Home) -> StatusFacts:
    """The daemon itself."""
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
        is_behind=home.is_behind,
        is_bound=rights.is_bound(home.sessions.resources),
    )


async def strangers(home: Home) -> list[StrangerFacts]:
    """What lay in the home when the daemon started, is unknown to names.db, and still lies there."""
    return home.present_strangers()


async def stop_daemon(home: Home) -> None:
    """End daemon and supervisor; sessions go on, what runs from outside ends. Raises NotAllowed for who is bound."""
    said = "commands of others would end with it"
    rights.check_unbound(home.sessions.resources, "stop", f"the daemon of {home.path}", said)
    home.stop_daemon()


def _check_pool(home: Path, names: Names) -> None:
    """Raise StoreDamaged if the home has no pool any more, though names.db knows of files in it. A new pool would be in
    the way when the old one is put back.
    """
    if has_pool(home):
        return
    known = len(names.captures()) + len(names.live())
    if known:
        said = f"it is gone, and {home}/names.db knows {known} captures and sessions with files in it"
        next_step = f"put it back ({IMAGE}, or the folder {FOLDER}); or begin afresh: {how_to_move_away(names.path)}"
        raise StoreDamaged("open", f"the pool of {home}", said, next_step)


class _Ids(msgspec.Struct):
    """`first`: the first id of the home's range (launch/ground/id_choice.py); 0: all sessions have the host's ids."""

    first: int


class HomeUsers(msgspec.Struct):
    """Who may use the home besides root. `trusted_uid`: the user who may do all that root may; None: nobody."""

    owner_uid: int | None = None
    group_gid: int | None = None
    trusted_uid: int | None = None


class HomeConfig(HomeUsers, kw_only=True):
    """What the daemon itself takes from config.json. `pool`: the sizes of a pool file, None: the usual ones.
    `keep_operations_s`: for how many seconds an operation can be taken back, even after a `gc`. `durable_after_s`: so
    many seconds after a name was moved, what it stands for is put into the store; None: when it is asked for.
    `hot_budget_bytes`: what captures may have on disk besides their files before what is in the store, too, is removed;
    `hot_memory_bytes`: what of it may be in memory, for `settle_after_s` seconds; of both None: the usual.
    `base_files_bytes`: how much an image has of the base's files. `seccomp`: whether sessions filter system calls.
    """

    ids: _Ids
    pool: PoolSizes | None = None
    keep_operations_s: float = KEEP_OPERATIONS_S
    durable_after_s: float | None = DURABLE_AFTER_S
    hot_budget_bytes: int | None = None
    hot_memory_bytes: int | None = None
    settle_after_s: float = SETTLE_AFTER_S
    base_files_bytes: int = MOST_OF_BASE
    seccomp: bool = True


def _config(home: str) -> HomeConfig:
    """What config.json asks for. A home that has no range of ids yet gets one, which is written to config.json unless
    the disk is full: a home must open all the same. Raises Failed if config.json cannot be used.
    """
    path, found = config_path(home), config_file.read(Path(home))
    if not powers.is_machines():  # there is no other id than the user's, who alone is served
        own = {"ids": {"first": 0}, "owner_uid": os.geteuid(), "trusted_uid": os.geteuid()}
        found = {**found, **own}
    if "ids" not in found:
        found["ids"] = {"first": find_first(home_id(home))}
        with contextlib.suppress(OSError):
            files.publish(path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    try:
        return msgspec.convert(found, HomeConfig)
    except msgspec.ValidationError as error:
        raise config_file.broken(Path(home), str(error)) from error
