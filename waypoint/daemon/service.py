"""What the routes ask of the home: the one interface between HTTP and everything below it.

Implemented by `waypoint.daemon.home`; the tests of the HTTP layer have one that lives in memory.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, Protocol

from waypoint.model.requests import (
    AttachRequest,
    BranchFacts,
    Capability,
    CaptureFacts,
    CheckpointFacts,
    CheckpointRequest,
    ExecRequest,
    ForkFacts,
    ForkRequest,
    LogsRequest,
    OperationFacts,
    RestoreRequest,
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


class Captures(Protocol):
    """Making captures of sessions, and sessions of captures. Every call may raise WaypointError."""

    async def checkpoint(self, branch: str, request: CheckpointRequest) -> CheckpointFacts: ...

    async def restore(self, branch: str, request: RestoreRequest) -> SessionFacts:
        """In place: the branch's session is replaced, or started if it is not live."""
        ...

    async def fork(self, request: ForkRequest) -> list[ForkFacts]:
        """All the asked-for branches, live, or none."""
        ...


class History(Protocol):
    """Captures, the names that move between them, and how they moved. Every call may raise WaypointError."""

    async def log(self, name: str | None, *, everything: bool, limit: int | None) -> list[CaptureFacts]:
        """The captures from `name` back, or all there are; the newest first."""
        ...

    async def show(self, name: str) -> CaptureFacts: ...

    async def branches(self) -> list[BranchFacts]: ...

    async def rename(self, branch: str, new: str) -> None: ...

    async def remove(self, names: list[str]) -> None:
        """Remove checkpoints and branches, all of them or none; StateConflict if one is a live branch."""
        ...

    async def operations(self, limit: int | None) -> list[OperationFacts]: ...

    async def undo(self, number: int | None) -> OperationFacts:
        """Take back the operation, or the last one that can be; the entry that this made in the log."""
        ...


class Service(Protocol):
    """Every call may raise WaypointError, which becomes the HTTP answer.

    Names of branches were checked by `parse_name`. A call goes on to its end when its client has gone meanwhile.
    """

    @property
    def captures(self) -> Captures: ...

    @property
    def history(self) -> History: ...

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
