"""The home behind the routes: everything that the daemon has opened, and what its requests mean.

Opened once, in the daemon's private mount namespace, by the one process that holds the home's lock.
"""

import asyncio
import functools
import os
import time
from pathlib import Path

import msgspec

from waypoint import __version__
from waypoint.capture.hot import Hot
from waypoint.daemon.captures import HomeCaptures
from waypoint.daemon.growth import PoolWatch
from waypoint.daemon.history import HomeHistory
from waypoint.daemon.inside import InsideService
from waypoint.daemon.service import Peer, Stream, StreamKind, StreamRequest
from waypoint.daemon.trials import trial
from waypoint.model.paths import home_id, runtime_folder
from waypoint.model.records import Capture
from waypoint.model.requests import (
    AttachRequest,
    Capability,
    ExecRequest,
    LogsRequest,
    RunRequest,
    SessionFacts,
    StartRequest,
    StatusFacts,
    StopRequest,
)
from waypoint.processes import criu_find
from waypoint.session import facts
from waypoint.session.ground.places import make_places, remove_group
from waypoint.session.home_ground import HomeGround
from waypoint.session.launch.link import Launcher
from waypoint.session.live import LiveSession
from waypoint.session.moments import Moments
from waypoint.session.sessions import Sessions
from waypoint.store.names import Names
from waypoint.upper.contract import PoolSizes
from waypoint.upper.open_pool import open_pool


class Home:
    """Implements `service.Service`. Made by `open`."""

    def __init__(self, path: Path, sizes: PoolSizes | None, criu: str | None) -> None:
        """`criu`: the one that was chosen, if one was."""
        self._path = path
        self._started = time.time()
        self._launcher = Launcher()
        self._launcher.open()
        name = home_id(str(path))
        self._places = make_places(path, Path(runtime_folder(str(path))), name)
        self._names = Names(path / "names.db")
        self._pool = open_pool(path, "auto", sizes)
        self._watch = PoolWatch(self._pool)
        tries = functools.partial(trial, where=path)
        find_criu = functools.cache(lambda: criu_find.find(path, tries=tries, chosen=criu))
        ground = HomeGround(self._places, self._names, self._pool, Hot(path), self._launcher, find_criu)
        self._sessions = Sessions(ground, self._watch.wake)
        moments = Moments(ground, self._sessions)
        self._sessions.serve_inside = InsideService(self._names, moments).serve
        self.captures = HomeCaptures(moments)
        self.history = HomeHistory(self._names, self._pool, self._sessions, moments)

    @classmethod
    async def open(cls, path: str, criu: str | None = None) -> "Home":
        """Open the home at `path` (made if it is not there) and find the sessions that outlived the last daemon.

        `criu`: the value of WAYPOINT_CRIU. Raises WaypointError, OSError.
        """
        os.makedirs(path, mode=0o700, exist_ok=True)
        home = cls(Path(path).resolve(), _pool_sizes(path), criu)
        home._sessions.adopt_all()
        home._watch.start(home._sessions)
        return home

    async def status(self) -> StatusFacts:
        return StatusFacts(
            pid=os.getpid(),
            version=__version__,
            home=str(self._path),
            sessions=len(self._sessions.live),
            started=facts.iso_time(self._started),
        )

    async def sessions(self, *, all_branches: bool) -> list[SessionFacts]:
        return await self._sessions.facts(all_branches=all_branches)

    async def start(self, request: StartRequest, peer: Peer) -> tuple[SessionFacts, bool]:
        live, is_new = await self._sessions.start(request, peer.uid)
        return facts.of_start(live), is_new

    async def session(self, branch: str) -> SessionFacts:
        return await facts.of_live(self._sessions.get(branch), self._pool)

    async def stop(self, branch: str, request: StopRequest, peer: Peer) -> dict[str, object]:
        if request.checkpoint is not None:
            capture: Capture | None = await self.captures.park(branch, request)
        else:
            capture = await self._sessions.stop(branch, discard=request.discard)
        return {"branch": branch, "capture": capture.id if capture else None, "exit": capture.exit if capture else None}

    async def open_stream(self, kind: StreamKind, branch: str, request: StreamRequest, peer: Peer) -> Stream:
        live = self._sessions.get(branch)
        return _stream(live, request)

    async def doctor(self) -> list[Capability]:
        from waypoint.daemon.trials import try_everything

        return await asyncio.to_thread(try_everything, self._path)

    async def shutdown(self) -> None:
        await self._sessions.close()
        self._watch.stop()
        self._launcher.close()
        self._pool.close()
        self._names.close()
        if not self._sessions.live:
            remove_group(self._places.cgroup)


def _stream(live: LiveSession, request: StreamRequest) -> Stream:
    match request:
        case AttachRequest():
            return lambda inlet, outlet: live.attach(request, inlet, outlet)
        case ExecRequest():
            return lambda inlet, outlet: live.execute(request, inlet, outlet)
        case RunRequest():
            return lambda inlet, outlet: live.run(request, inlet, outlet)
        case LogsRequest():
            return lambda inlet, outlet: live.logs(request, inlet, outlet)


def _pool_sizes(home: str) -> PoolSizes | None:
    """The sizes that config.json asks for; None: the usual ones."""
    try:
        with open(f"{home}/config.json", "rb") as file:
            return msgspec.json.decode(file.read(), type=_Config).pool
    except FileNotFoundError:
        return None


class _Config(msgspec.Struct):
    """What the daemon itself takes from config.json."""

    pool: PoolSizes | None = None
