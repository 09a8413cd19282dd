"""What the routes ask of the home: the one interface between HTTP and everything below it.

Implemented by `waypoint.daemon.home`; the tests of the HTTP layer have one that lives in memory.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, Protocol

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
from waypoint.model.streams import Inlet, Outlet


class Peer(NamedTuple):
    """Who is at the other end of a connection, by SO_PEERCRED (unix(7)): the process that connected, at that moment.

    The ids are those of the daemon's own user and pid namespaces. By the time it is used, the pid may be another's.
    """

    pid: int
    uid: int
    gid: int


StreamKind = Literal["attach", "exec", "run", "logs"]
StreamRequest = AttachRequest | ExecRequest | RunRequest | LogsRequest

Stream = Callable[[Inlet, Outlet], Awaitable[dict[str, object]]]
"""Serves one stream until its end and returns the payload of the `x` frame.

It must have a `receive()` pending while it waits for anything else: only that tells it that the client has gone. It is
cancelled when the daemon stops. A WaypointError that it raises becomes an `x` frame with `error`.
"""


class Service(Protocol):
    """Every call may raise WaypointError, which becomes the HTTP answer.

    Names of branches were checked by `parse_name`. A call goes on to its end when its client has gone meanwhile.
    """

    async def status(self) -> StatusFacts: ...

    async def sessions(self, *, all_branches: bool) -> list[SessionFacts]: ...

    async def start(self, request: StartRequest, peer: Peer) -> tuple[SessionFacts, bool]:
        """Start the branch's session or find the live one; True if it was started by this call."""
        ...

    async def session(self, branch: str) -> SessionFacts: ...

    async def stop(self, branch: str, request: StopRequest, peer: Peer) -> dict[str, object]:
        """End the branch's session; the answer holds `branch`, `capture` (or None) and `exit` (or None)."""
        ...

    async def open_stream(self, kind: StreamKind, branch: str, request: StreamRequest, peer: Peer) -> Stream:
        """Check that the stream is possible; problems raised here are plain HTTP answers, before the upgrade.

        Must leave nothing behind that only the returned Stream would clean up: if the client vanishes now, it is never
        called.
        """
        ...

    async def doctor(self) -> list[Capability]: ...

    async def shutdown(self) -> None:
        """The last call: streams and requests have ended. The process exits after it; sessions go on."""
        ...
