"""Serving one client: its requests, one after the other, until it closes or the connection becomes a stream
(docs/protocol.md).

A client that violates the protocol gets an error and is disconnected. Timers run only while the server waits for the
rest of a request, or for the client to read an answer.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from waypoint.daemon.http import listing
from waypoint.daemon.http.connection import Connection
from waypoint.daemon.http.messages import Limits, Messages, error_body, wants_stages, wants_stream
from waypoint.daemon.http.problems import HttpProblem, status_of
from waypoint.daemon.http.reading import Target, find_route, parse_branch, parse_query, parse_request
from waypoint.daemon.http.route import Call, Route, Routes
from waypoint.daemon.http.shares import Share
from waypoint.daemon.http.stream import StreamInlet, StreamOutlet
from waypoint.daemon.http.telling import told
from waypoint.model.errors import StateConflict, UsageProblem, WaypointError
from waypoint.service.background.bugs import as_problem
from waypoint.service.callers import serving, showing
from waypoint.service.shapes import Download, Stream, Upload


class Served(NamedTuple):
    """The table of routes, and the service behind it. If `service` raises a WaypointError, every request is answered
    with that error.
    """

    service: Callable[[], object]
    routes: Routes


class Conversation:
    """Serves one client in a task that runs `serve`.

    Cancelling the task ends the conversation at once; a stream of frames first gets its `x` frame.
    """

    def __init__(
        self,
        connection: Connection,
        served: Served,
        limits: Limits,
        share: Share,
        *,
        on_idle: Callable[["Conversation"], None],
        on_busy: Callable[["Conversation"], None],
    ) -> None:
        """`share`: the share of the client's user. `on_idle` is called before each wait for a request, or for the
        client to close; `on_busy` when a request arrives.
        """
        self._connection = connection
        self._served = served
        self._limits = limits
        self._on_idle = functools.partial(on_idle, self)
        self._on_busy = functools.partial(on_busy, self)
        self.share = share
        self._is_counted = False  # whether the user's share counts the present request as being served
        self._messages = Messages(connection, limits, share.turn)
        self._tells = False  # whether the client wants to know the stages of its request
        self.streaming = False  # whether the answer is endless: a stream (after a 101) or an endless download

    async def serve(self) -> None:
        """Serve requests until the client closes or is disconnected. The socket is not closed."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            while await self._exchange_counted():
                self.streaming = False
            self._on_idle()  # no request is being served, so the connection may be ended
            await self._connection.hang_up(self._limits.goodbye_s)

    async def _exchange_counted(self) -> bool:
        """Serve one request. Returns True if another request may follow."""
        try:
            return await self._exchange()
        finally:
            self._count_no_more()

    def _count_no_more(self) -> None:
        """Stop counting the request towards the user's limit: it has ended, or has become a stream."""
        if self._is_counted:
            self._is_counted = False
            self.share.end()

    async def _exchange(self) -> bool:
        try:
            request = await self._messages.request(self._on_idle, self._on_busy)
            if request is None:
                return False
            await self.share.begin()  # before the body is read into memory
            self._is_counted = True
            if request.http_version not in (b"1.0", b"1.1"):
                raise HttpProblem(505, "the server supports only HTTP/1.0 and HTTP/1.1")
            target = find_route(self._served.routes, request.method, request.target)
            branch = parse_branch(request.headers)
            limit, uploads = target.route.body_limit, target.route.signature.uploads
            body = self._messages.upload(request, limit) if uploads else await self._messages.body(request, limit)
            if target.route.signature.gives == "stream" and not wants_stream(request):
                raise HttpProblem(
                    426, "a stream needs 'Connection: Upgrade' and 'Upgrade: waypoint-stream'", on=target.on
                )
        except HttpProblem as refused:
            await self._messages.refuse(refused.status, refused.problem)
        except UsageProblem as problem:
            await self._messages.refuse(status_of(problem), problem)
        else:
            self._tells = wants_stages(request)
            with told(self._messages.tell if self._tells and not wants_stream(request) else None):
                await self._serve_call(target, body, branch)
            return self._messages.next()
        return False

    async def _serve_call(self, target: Target, body: bytes | Upload, branch: str | None) -> None:
        """Call the service function and send its answer. `branch`: from the header Waypoint-Branch, if there is one."""
        route, peer = target.route, self._connection.peer
        try:
            request = parse_request(target, body) if isinstance(body, bytes) else parse_query(target)
            upload = None if isinstance(body, bytes) else body
            call = Call(target.names, peer, request, upload, self._served.routes)
            service = self._served.service()
            with showing(peer) if route.method == "GET" else serving(peer, branch):
                result = await route.function(service, **route.arguments(call))
            answer = _answer(route, result)
        except HttpProblem as refused:  # raised by the uploaded body while the service function read it
            await self._messages.refuse(refused.status, refused.problem)
            return
        except Exception as error:  # every exception of a service function becomes an answer
            answer = _failure(as_problem(error, target.on))
        match answer:
            case Download():
                await self._send_pieces(answer, target)
            case Whole():
                await self._messages.answer(*answer)
            case _:
                await self._messages.switch_protocols()
                await self._converse(answer, target)

    async def _send_pieces(self, download: Download, target: Target) -> None:
        """Send the download. If a later piece cannot be made, send the error and raise ConnectionError: a begun answer
        can only break off.
        """
        self.streaming = download.endless
        if download.endless:
            self._count_no_more()
        try:
            await self._messages.answer_in_pieces(200, download)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            problem = as_problem(error, target.on)
            if self._messages.is_answered:
                await self._messages.break_off(problem)
                raise ConnectionAbortedError("the rest of the answer could not be made") from error
            await self._messages.answer(*_failure(problem))

    async def _converse(self, stream: Stream, target: Target) -> None:
        """Run `stream` until it ends, then send the `x` frame."""
        inlet = StreamInlet(self._connection, self._messages.rest)
        outlet = StreamOutlet(self._connection)
        self.streaming = True
        self._count_no_more()
        try:
            with told(functools.partial(_note_stage, outlet) if self._tells else None, at_first=True):
                end = await stream(inlet, outlet)
        except asyncio.CancelledError as cancelled:
            end = _error_end(_why_cancelled(cancelled, target.on))
        except Exception as error:
            if outlet.broken:
                return
            end = _error_end(as_problem(error, target.on))
        if inlet.complaint:
            next_step = "send frames as docs/protocol.md, section 2, describes them"
            end = _error_end(UsageProblem("read a frame of", target.on, inlet.complaint, next_step))
        async with asyncio.timeout(self._limits.answer_s):
            await outlet.end(end)


async def _note_stage(outlet: StreamOutlet, stage: bytes) -> bool:
    await outlet.note({"stage": msgspec.Raw(stage)})
    return True


class Whole(NamedTuple):
    """An answer in JSON that is sent at once."""

    status: int
    content: bytes


def _answer(route: Route, result: Any) -> Whole | Download | Stream:  # noqa: ANN401
    """The answer to the client, made from the result of the service function."""
    signature = route.signature
    if signature.gives == "list":
        return listing.as_json(route.wrap, result)
    if signature.gives != "record":
        answer: Download | Stream = result
        return answer
    is_made = route.created
    if signature.tells:
        result, is_made = result
    content = {route.wrap: result} if route.wrap else {} if result is None else result
    return Whole(201 if is_made else 200, msgspec.json.encode(content))


def _failure(problem: WaypointError) -> Whole:
    return Whole(status_of(problem), error_body(problem))


def _why_cancelled(cancelled: asyncio.CancelledError, on: str) -> WaypointError:
    """Undo the cancellation of the current task, so that the task can still send an error to its client. Returns the
    error.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        # Not this task was cancelled, but another task, for which the stream was waiting.
        said = RuntimeError("a part of the stream was cancelled")
        said.__cause__ = cancelled
        return as_problem(said, on)
    task.uncancel()
    next_step = "start a new daemon with 'waypoint ps'; the session and its processes are still running"
    return StateConflict("continue", on, "the daemon was stopped", next_step, code="daemon-stopped")


def _error_end(problem: WaypointError) -> dict[str, object]:
    return {"error": problem.to_json()}
