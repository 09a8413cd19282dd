"""The table of everything that the control interface can be asked; docs/protocol.md, section 1.

One entry is all there is to know about a route: the HTTP layer serves it and `openapi.py` describes it, both from the
same record.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from waypoint.daemon.answers import (
    BranchesAnswer,
    CaptureAnswer,
    CapturesAnswer,
    DoctorAnswer,
    Done,
    ForksAnswer,
    LogQuery,
    Nothing,
    OperationAnswer,
    OperationsAnswer,
    OperationsQuery,
    SessionAnswer,
    SessionsAnswer,
    SessionsQuery,
    StopAnswer,
)
from waypoint.daemon.service import Peer, Service, Stream, StreamKind, StreamRequest
from waypoint.model.names import parse_name
from waypoint.model.requests import (
    AttachRequest,
    CheckpointFacts,
    CheckpointRequest,
    ExecRequest,
    ForkRequest,
    LogsRequest,
    RemoveRequest,
    RenameRequest,
    Request,
    RestoreRequest,
    RunRequest,
    StartRequest,
    StatusFacts,
    StopRequest,
    UndoRequest,
)

MAX_BODY_BYTES = 1 << 20
# An exec's text may have 16 MiB; as JSON each line break and quote of it takes two bytes.
MAX_EXEC_TEXT_BYTES = 16 << 20
MAX_EXEC_BODY_BYTES = 2 * MAX_EXEC_TEXT_BYTES + 4096

BRANCH = "{branch}"
NAME = "{name}"
PLACEHOLDERS = (BRANCH, NAME)  # always the third part of a path


class Call(NamedTuple):
    """One request, as a handler sees it."""

    service: Service
    peer: Peer
    branch: str  # or another name, checked; empty where the path has none
    stop_daemon: Callable[[], None]


class Reply(NamedTuple):
    """`body` is a Struct or plain data that JSON can hold."""

    body: object
    status: int = 200


Handler = Callable[[Call, Any], Awaitable[Reply | Stream]]
"""Its second argument is an instance of what its route takes."""


@dataclass(frozen=True, slots=True)
class Route:
    """`takes` describes the JSON body of a POST and the query of a GET."""

    method: str
    path: str
    summary: str
    takes: type[Request]
    gives: type
    handler: Handler
    streams: bool = False  # the handler gives a Stream, to run after the upgrade
    created: bool = False  # may answer 201
    body_limit: int = MAX_BODY_BYTES


async def _status(call: Call, _: Nothing) -> Reply:
    return Reply(await call.service.status())


async def _openapi(_: Call, __: Nothing) -> Reply:
    from waypoint.daemon.openapi import document  # asked for rarely, and slow to build

    return Reply(document(ROUTES))


async def _sessions(call: Call, query: SessionsQuery) -> Reply:
    return Reply(SessionsAnswer(sessions=await call.service.sessions(all_branches=query.all)))


async def _start(call: Call, request: StartRequest) -> Reply:
    parse_name(request.branch)
    if request.from_name is not None:
        parse_name(request.from_name)
    session, started = await call.service.start(request, call.peer)
    return Reply(SessionAnswer(session=session), 201 if started else 200)


async def _session(call: Call, _: Nothing) -> Reply:
    return Reply(SessionAnswer(session=await call.service.session(call.branch)))


async def _stop(call: Call, request: StopRequest) -> Reply:
    return Reply(msgspec.convert(await call.service.stop(call.branch, request, call.peer), StopAnswer))


async def _checkpoint(call: Call, request: CheckpointRequest) -> Reply:
    return Reply(await call.service.captures.checkpoint(call.branch, request))


async def _restore(call: Call, request: RestoreRequest) -> Reply:
    return Reply(SessionAnswer(session=await call.service.captures.restore(call.branch, request)))


async def _fork(call: Call, request: ForkRequest) -> Reply:
    return Reply(ForksAnswer(forks=await call.service.captures.fork(request)), 201)


async def _log(call: Call, query: LogQuery) -> Reply:
    found = await call.service.history.log(query.name, everything=query.all, limit=query.limit)
    return Reply(CapturesAnswer(captures=found))


async def _show(call: Call, _: Nothing) -> Reply:
    return Reply(CaptureAnswer(capture=await call.service.history.show(call.branch)))


async def _branches(call: Call, _: Nothing) -> Reply:
    return Reply(BranchesAnswer(branches=await call.service.history.branches()))


async def _rename(call: Call, request: RenameRequest) -> Reply:
    await call.service.history.rename(call.branch, request.to)
    return Reply(Done())


async def _remove(call: Call, request: RemoveRequest) -> Reply:
    await call.service.history.remove(request.names)
    return Reply(Done())


async def _operations(call: Call, query: OperationsQuery) -> Reply:
    return Reply(OperationsAnswer(operations=await call.service.history.operations(query.limit)))


async def _undo(call: Call, request: UndoRequest) -> Reply:
    return Reply(OperationAnswer(operation=await call.service.history.undo(request.number)))


async def _doctor(call: Call, _: Nothing) -> Reply:
    return Reply(DoctorAnswer(capabilities=await call.service.doctor()))


async def _stop_daemon(call: Call, _: Nothing) -> Reply:
    call.stop_daemon()
    return Reply(Done())


def _stream(kind: StreamKind, summary: str, takes: type[Request], body_limit: int = MAX_BODY_BYTES) -> Route:
    async def open_stream(call: Call, request: StreamRequest) -> Stream:
        return await call.service.open_stream(kind, call.branch, request, call.peer)

    path = f"/v1/sessions/{BRANCH}/{kind}"
    return Route("POST", path, summary, takes, Done, open_stream, streams=True, body_limit=body_limit)


ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/status", "The daemon itself", Nothing, StatusFacts, _status),
    Route("GET", "/v1/openapi.json", "This description", Nothing, dict, _openapi),
    Route(
        "GET",
        "/v1/sessions",
        "Live sessions; with `all` also branches that could be started again",
        SessionsQuery,
        SessionsAnswer,
        _sessions,
    ),
    Route(
        "POST",
        "/v1/sessions",
        "Start the branch's session, or return the live one",
        StartRequest,
        SessionAnswer,
        _start,
        created=True,
    ),
    Route("GET", f"/v1/sessions/{BRANCH}", "One session", Nothing, SessionAnswer, _session),
    Route("POST", f"/v1/sessions/{BRANCH}/stop", "End the session", StopRequest, StopAnswer, _stop),
    Route(
        "POST",
        f"/v1/sessions/{BRANCH}/checkpoint",
        "Capture the session, which goes on, and name that",
        CheckpointRequest,
        CheckpointFacts,
        _checkpoint,
    ),
    Route(
        "POST",
        f"/v1/sessions/{BRANCH}/restore",
        "Bring a capture back in place: the session is replaced, or started",
        RestoreRequest,
        SessionAnswer,
        _restore,
    ),
    Route("POST", "/v1/forks", "Live sessions on new branches", ForkRequest, ForksAnswer, _fork, created=True),
    Route("GET", "/v1/captures", "Captures from a name back, or all", LogQuery, CapturesAnswer, _log),
    Route("GET", f"/v1/captures/{NAME}", "One capture", Nothing, CaptureAnswer, _show),
    Route("GET", "/v1/branches", "Branches, live or not", Nothing, BranchesAnswer, _branches),
    Route("POST", f"/v1/branches/{BRANCH}/rename", "Rename a branch", RenameRequest, Done, _rename),
    Route("POST", "/v1/names/remove", "Remove names, all or none", RemoveRequest, Done, _remove),
    Route("GET", "/v1/operations", "The operation log", OperationsQuery, OperationsAnswer, _operations),
    Route("POST", "/v1/operations/undo", "Take an operation back", UndoRequest, OperationAnswer, _undo),
    _stream("attach", "The terminal", AttachRequest),
    _stream("exec", "A command line in the session's own shell", ExecRequest, MAX_EXEC_BODY_BYTES),
    _stream("run", "A separate process in the session", RunRequest),
    _stream("logs", "The scrollback", LogsRequest),
    Route("POST", "/v1/doctor", "Try every capability on a throw-away session", Nothing, DoctorAnswer, _doctor),
    Route("POST", "/v1/daemon/stop", "Stop the daemon and its supervisor; sessions go on", Nothing, Done, _stop_daemon),
)
