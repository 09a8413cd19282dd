"""A fake service for the tests of the HTTP layer: its branches are entries of a dict, and its streams echo.

Its functions have the signatures of those in waypoint.service. The name of a branch selects what its streams do.
"""

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import waypoint
from waypoint.daemon.http.route import Routes
from waypoint.daemon.http.routes import ROUTES
from waypoint.model.activity import JobFacts
from waypoint.model.errors import (
    CannotCapture,
    Failed,
    HostLacks,
    NotAllowed,
    StateConflict,
    StoreDamaged,
    UnknownName,
    WaypointError,
)
from waypoint.model.names import parse_name
from waypoint.model.requests import (
    AttachRequest,
    ExecRequest,
    LogsRequest,
    Request,
    RunRequest,
    SessionsQuery,
    StartRequest,
    StopRequest,
)
from waypoint.model.session_facts import Capability, SessionFacts, StatusFacts, StopFacts
from waypoint.model.streams import Inlet, Outlet
from waypoint.service.background.events import Events
from waypoint.service.background.jobs import Job, Jobs
from waypoint.service.shapes import Pages, Peer, Stream

# The start of a session on a branch of such a name raises this error.
TROUBLES: dict[str, Exception] = {
    kind.code: kind("start a session", "on", "said", "next")
    for kind in (HostLacks, NotAllowed, StateConflict, CannotCapture, StoreDamaged, Failed)
} | {"surprise": KeyError("a secret value"), "gone": FileNotFoundError(2, "No such file", "/pool")}


class MemoryService:
    """`peers`: the processes that sent requests. When `released` is set, streams on the branch `waits` end."""

    def __init__(self) -> None:
        self.branches: dict[str, SessionFacts] = {}
        self.peers: list[Peer] = []
        self.requests: list[object] = []
        self.ended_streams: list[str] = []
        self.released = asyncio.Event()
        self.shut_down = False
        self.events = Events(asyncio.get_running_loop())
        self.jobs = Jobs(self.events)
        self.path = Path("/home/of/none")
        self.sessions = SimpleNamespace(resources=SimpleNamespace(trusted=None))
        self.stop_daemon: Callable[[], None] = _do_nothing

    async def shutdown(self) -> None:
        await self.jobs.close()
        self.shut_down = True


async def status(memory: MemoryService) -> StatusFacts:
    return StatusFacts(
        pid=os.getpid(),
        version=waypoint.__version__,
        home="/memory",
        sessions=len(memory.branches),
        started="2026-01-01T00:00:00Z",
        pool="btrfs",
    )


async def sessions(memory: MemoryService, query: SessionsQuery) -> Pages[SessionFacts]:
    ended = [SessionFacts(branch="old", state="ended", created="2026-01-01T00:00:00Z")] if query.all else []
    return iter([[*memory.branches.values(), *ended]])


async def start(memory: MemoryService, request: StartRequest, peer: Peer) -> tuple[SessionFacts, bool]:
    for name in (request.branch, *([request.from_name] if request.from_name is not None else [])):
        parse_name(name)
    memory.peers.append(peer)
    memory.requests.append(request)
    if request.branch == "slow":
        await memory.released.wait()
    if request.branch in TROUBLES:
        raise TROUBLES[request.branch]
    fresh = request.branch not in memory.branches
    facts = SessionFacts(branch=request.branch, state="live", created="2026-01-01T00:00:00Z", net=request.net)
    return memory.branches.setdefault(request.branch, facts), fresh


async def session(memory: MemoryService, branch: str) -> SessionFacts:
    if branch not in memory.branches:
        raise UnknownName("find the branch", branch, "there is none of this name", "waypoint ps --all lists them")
    return memory.branches[branch]


async def stop(memory: MemoryService, branch: str, request: StopRequest) -> StopFacts:
    await session(memory, branch)
    del memory.branches[branch]
    return StopFacts(branch=branch, capture=None if request.discard else "c0ffee", exit=0)


async def doctor(memory: MemoryService) -> list[Capability]:
    return [Capability(name="overlay", state="ok")]


class MemoryJobRequest(Request, frozen=True):
    """`kind`: `count` (to 1000, in a thread), `wait` (until cancelled), `refuse` (HostLacks), other (KeyError)."""

    kind: str


async def start_job(memory: MemoryService, request: MemoryJobRequest) -> JobFacts:
    async def work(job: Job) -> object:
        match request.kind:
            case "count":
                return await asyncio.to_thread(_count, job)
            case "wait":
                memory.requests.append(job.id)
                try:
                    await memory.released.wait()
                finally:
                    memory.ended_streams.append(job.id)
            case "refuse":
                raise HostLacks("count", "the machine's fingers", "there are none", "count on something else")
        raise KeyError("a secret value")

    return memory.jobs.start(request.kind, work).facts(whole=False)


def _count(job: Job) -> dict[str, int]:
    for number in range(1, 1001):
        job.report(items=number, items_total=1000, bytes=64 * number)
    return {"counted": 1000}


async def attach(memory: MemoryService, branch: str, request: AttachRequest, peer: Peer) -> Stream:
    return await _open_stream(memory, branch, request, peer)


async def execute(memory: MemoryService, branch: str, request: ExecRequest, peer: Peer) -> Stream:
    return await _open_stream(memory, branch, request, peer)


async def run(memory: MemoryService, branch: str, request: RunRequest, peer: Peer) -> Stream:
    return await _open_stream(memory, branch, request, peer)


async def logs(memory: MemoryService, branch: str, request: LogsRequest, peer: Peer) -> Stream:
    return await _open_stream(memory, branch, request, peer)


FUNCTIONS: dict[str, Callable[..., Awaitable[object]]] = {
    "GET /v1/status": status,
    "GET /v1/sessions": sessions,
    "POST /v1/sessions": start,
    "GET /v1/sessions/{branch}": session,
    "POST /v1/sessions/{branch}/stop": stop,
    "POST /v1/sessions/{branch}/attach": attach,
    "POST /v1/sessions/{branch}/exec": execute,
    "POST /v1/sessions/{branch}/run": run,
    "POST /v1/sessions/{branch}/logs": logs,
    "POST /v1/doctor": doctor,
    "POST /v1/jobs": start_job,
}

MEMORY_ROUTES: Routes = tuple(
    dataclasses.replace(route, function=FUNCTIONS.get(f"{route.method} {route.path}", route.function))
    for route in ROUTES
)
"""The real table of routes, with functions of this module for the routes that the tests use."""


async def _open_stream(memory: MemoryService, branch: str, request: Request, peer: Peer) -> Stream:
    await session(memory, branch)
    memory.peers.append(peer)
    memory.requests.append(request)

    async def stream(inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        try:
            return await _stream(memory, branch, inlet, outlet)
        finally:
            memory.ended_streams.append(branch)

    return stream


async def _stream(memory: MemoryService, branch: str, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
    match branch:
        case "fails":
            raise WaypointError("stream", branch, "as asked")
        case "surprises":
            raise KeyError("a secret value")
        case "cancels":
            raise asyncio.CancelledError
        case "waits":
            await memory.released.wait()
        case "floods":
            block = memoryview(os.urandom(1 << 18))
            while True:
                await outlet.output(block)
    await _echo(inlet, outlet)
    return {"exit": 0}


async def _echo(inlet: Inlet, outlet: Outlet) -> None:
    """Send all input back until an empty 'i' frame."""
    while frame := await inlet.receive():
        match frame.kind:
            case "i" if not frame.payload:
                return
            case "i":
                await outlet.output(frame.payload)
            case "k":
                await outlet.errors(frame.payload)
            case "w":
                size = [int.from_bytes(frame.payload[:2], "big"), int.from_bytes(frame.payload[2:], "big")]
                await outlet.note({"size": size})


def _do_nothing() -> None:
    return
