"""A Service in memory, for the tests of the HTTP layer: its branches are names in a dict and its streams echo.

It keeps to the contract of waypoint.daemon.service; what it does inside a stream is chosen by the branch's name.
"""

import asyncio
import os

import waypoint
from waypoint.daemon.service import Peer, Stream, StreamKind, StreamRequest
from waypoint.model.errors import (
    CannotCapture,
    Failed,
    HostLacks,
    StateConflict,
    StoreDamaged,
    UnknownName,
    WaypointError,
)
from waypoint.model.requests import Capability, SessionFacts, StartRequest, StatusFacts, StopRequest
from waypoint.model.streams import Inlet, Outlet

# Starting a branch of such a name raises the error.
TROUBLES: dict[str, Exception] = {
    kind.code: kind("start a session", "on", "said", "next")
    for kind in (HostLacks, StateConflict, CannotCapture, StoreDamaged, Failed)
} | {"surprise": KeyError("a secret value"), "gone": FileNotFoundError(2, "No such file", "/pool")}


class MemoryService:
    """`peers`: who has asked for something. `released`: streams on the branch `waits` end when it is set."""

    def __init__(self) -> None:
        self.branches: dict[str, SessionFacts] = {}
        self.peers: list[Peer] = []
        self.requests: list[object] = []
        self.ended_streams: list[str] = []
        self.released = asyncio.Event()
        self.shut_down = False

    async def status(self) -> StatusFacts:
        return StatusFacts(
            pid=os.getpid(),
            version=waypoint.__version__,
            home="/memory",
            sessions=len(self.branches),
            started="2026-01-01T00:00:00Z",
        )

    async def sessions(self, *, all_branches: bool) -> list[SessionFacts]:
        ended = [SessionFacts(branch="old", state="ended", created="2026-01-01T00:00:00Z")] if all_branches else []
        return [*self.branches.values(), *ended]

    async def start(self, request: StartRequest, peer: Peer) -> tuple[SessionFacts, bool]:
        self.peers.append(peer)
        self.requests.append(request)
        if request.branch == "slow":
            await self.released.wait()
        if request.branch in TROUBLES:
            raise TROUBLES[request.branch]
        fresh = request.branch not in self.branches
        facts = SessionFacts(branch=request.branch, state="live", created="2026-01-01T00:00:00Z", net=request.net)
        return self.branches.setdefault(request.branch, facts), fresh

    async def session(self, branch: str) -> SessionFacts:
        if branch not in self.branches:
            raise UnknownName("find the branch", branch, "there is none of this name", "waypoint ps --all lists them")
        return self.branches[branch]

    async def stop(self, branch: str, request: StopRequest, peer: Peer) -> dict[str, object]:
        await self.session(branch)
        del self.branches[branch]
        return {"branch": branch, "capture": None if request.discard else "c0ffee", "exit": 0}

    async def open_stream(self, kind: StreamKind, branch: str, request: StreamRequest, peer: Peer) -> Stream:
        await self.session(branch)
        self.peers.append(peer)
        self.requests.append(request)

        async def stream(inlet: Inlet, outlet: Outlet) -> dict[str, object]:
            try:
                return await self._stream(branch, inlet, outlet)
            finally:
                self.ended_streams.append(branch)

        return stream

    async def doctor(self) -> list[Capability]:
        return [Capability(name="overlay", state="ok")]

    async def shutdown(self) -> None:
        self.shut_down = True

    async def _stream(self, branch: str, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        match branch:
            case "fails":
                raise WaypointError("stream", branch, "as asked")
            case "surprises":
                raise KeyError("a secret value")
            case "cancels":
                raise asyncio.CancelledError
            case "waits":
                await self.released.wait()
            case "floods":
                block = memoryview(os.urandom(1 << 18))
                while True:
                    await outlet.output(block)
        await _echo(inlet, outlet)
        return {"exit": 0}


async def _echo(inlet: Inlet, outlet: Outlet) -> None:
    """Send everything back until an empty 'i'."""
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
