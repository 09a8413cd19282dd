"""HTTP/1.1 on one connection: request after request until it closes or becomes a stream (docs/protocol.md).

h11 knows the protocol, `reading` our requests, `routes` what they do; here is the order of things and the limits. A
client that breaks a rule gets one clear answer and is cut off. Timers run only while a client owes us something.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import h11
import msgspec

from waypoint.daemon.connection import Connection
from waypoint.daemon.problems import HttpProblem, as_problem, status_of
from waypoint.daemon.reading import Target, find_route, parse_request
from waypoint.daemon.routes import Call, Reply
from waypoint.daemon.service import Service, Stream
from waypoint.daemon.stream import StreamInlet, StreamOutlet
from waypoint.model.errors import StateConflict, UsageProblem, WaypointError

PROTOCOL = b"waypoint-stream"  # in the header `Upgrade`
_UPGRADE_HEADERS = [(b"connection", b"Upgrade"), (b"upgrade", PROTOCOL)]


@dataclass(frozen=True, slots=True)
class Limits:
    headers_bytes: int = 16384
    incomplete_s: float = 10.0  # from the first byte of the headers, or of the body, to the last
    answer_s: float = 30.0  # for the client to take an answer
    goodbye_s: float = 1.0  # between our end of a connection and the client's
    connections: int = 512


class Conversation:
    """One client, from accept to close. `serve` runs in a task of its own.

    Cancelling that task ends it: at once, or, if it is `streaming`, after an `x` frame.
    """

    def __init__(
        self,
        connection: Connection,
        service: Callable[[], Service],
        limits: Limits,
        *,
        stop_daemon: Callable[[], None],
        on_idle: Callable[["Conversation"], None],
        on_busy: Callable[["Conversation"], None],
    ) -> None:
        """`on_idle` is called when waiting for a request, or for the client's end, begins; `on_busy` at a request."""
        self._connection = connection
        self._service = service
        self._limits = limits
        self._stop_daemon = stop_daemon
        self._on_idle = on_idle
        self._on_busy = on_busy
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.headers_bytes)
        self.streaming = False  # from the 101 on

    async def serve(self) -> None:
        """Returns when the client has gone or was cut off. Closes nothing."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            while await self._exchange():
                self._http.start_next_cycle()
            self._on_idle(self)  # there is nothing left to lose
            await self._connection.hang_up(self._limits.goodbye_s)

    async def _exchange(self) -> bool:
        """Serve one request; True if another may follow."""
        try:
            request = await self._headers()
            if request is None:
                return False
            if request.http_version not in (b"1.0", b"1.1"):
                raise HttpProblem(505, "this is a server of HTTP/1.1")
            target = find_route(request.method, request.target)
            body = await self._body(request, target.route.body_limit)
            if target.route.streams and not _wants_stream(request):
                raise HttpProblem(
                    426, "a stream needs 'Connection: Upgrade' and 'Upgrade: waypoint-stream'", on=target.on
                )
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, HttpProblem(400, f"this is not HTTP: {error}").problem)
        except HttpProblem as refused:
            await self._refuse(refused.status, refused.problem)
        except UsageProblem as problem:
            await self._refuse(status_of(problem), problem)
        else:
            return await self._serve_target(target, body)
        return False

    async def _headers(self) -> h11.Request | None:
        """The request line and headers; None if the client closes instead of asking.

        Waits for the first byte without a limit.
        """
        if not self._http.trailing_data[0]:
            self._on_idle(self)
            try:
                self._http.receive_data(await self._connection.receive())
            finally:
                self._on_busy(self)
        async with _complete_within(self._limits.incomplete_s):
            event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def _body(self, request: h11.Request, limit: int) -> bytes:
        announced = next((value for name, value in request.headers if name == b"content-length"), b"0")
        body = bytearray()
        async with _complete_within(self._limits.incomplete_s):
            # h11 has checked that it is a number of at most 20 digits.
            while int(announced) <= limit and len(body) <= limit:
                event = await self._event()
                if not isinstance(event, h11.Data):
                    return bytes(body)
                body += event.data
        raise HttpProblem(413, f"the body may have at most {limit} bytes")

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._connection.receive())

    async def _serve_target(self, target: Target, body: bytes) -> bool:
        try:
            call = Call(self._service(), self._connection.peer, target.branch, self._stop_daemon)
            outcome = await target.route.handler(call, parse_request(target, body))
            answer = (outcome.status, msgspec.json.encode(outcome.body)) if isinstance(outcome, Reply) else outcome
        except Exception as error:  # the border: whatever a handler raises becomes an answer
            problem = as_problem(error, target.on)
            answer = (status_of(problem), _error_body(problem))
        if isinstance(answer, tuple):
            await self._answer(*answer)
            return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        await self._send(h11.InformationalResponse(status_code=101, headers=_UPGRADE_HEADERS))
        await self._converse(answer, target)
        return False

    async def _converse(self, stream: Stream, target: Target) -> None:
        """Run `stream` until it ends, then send the `x` frame."""
        inlet = StreamInlet(self._connection, self._http.trailing_data[0])
        outlet = StreamOutlet(self._connection)
        self.streaming = True
        try:
            end = await stream(inlet, outlet)
        except asyncio.CancelledError as cancelled:
            end = _error_end(_why_cancelled(cancelled, target.on))
        except Exception as error:  # the border, as above
            if outlet.broken:
                return
            end = _error_end(as_problem(error, target.on))
        if inlet.complaint:
            end = _error_end(UsageProblem("read a frame of", target.on, inlet.complaint))
        async with asyncio.timeout(self._limits.answer_s):
            await outlet.end(end)

    async def _refuse(self, status: int, problem: WaypointError) -> None:
        """Answer a request that was not read to its end, or not understood: nothing can follow on this connection."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._answer(status, _error_body(problem), [("connection", "close")])

    async def _answer(self, status: int, content: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        described = [("content-type", "application/json"), ("content-length", str(len(content))), *headers]
        response = h11.Response(status_code=status, headers=described)
        await self._send(response, h11.Data(data=content), h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._http.send(event) or b"" for event in events)
        async with asyncio.timeout(self._limits.answer_s):
            await self._connection.send(data)


@contextlib.asynccontextmanager
async def _complete_within(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise HttpProblem(408, f"the request was not complete after {seconds:g} s") from None


def _wants_stream(request: h11.Request) -> bool:
    """Whether the request asks for the switch to our protocol (RFC 9110, 7.8: not in HTTP/1.0)."""
    tokens = [(name, part.strip()) for name, value in request.headers for part in value.lower().split(b",")]
    asked = (b"connection", b"upgrade") in tokens and (b"upgrade", PROTOCOL) in tokens
    return asked and request.http_version == b"1.1"


def _why_cancelled(cancelled: asyncio.CancelledError, on: str) -> WaypointError:
    """Take back a cancellation of the current task: what is left to do is to tell the client, and to end."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        # Nobody has cancelled us: something that the stream waited for was, and the stream let it pass.
        said = RuntimeError("a part of the stream was cancelled")
        said.__cause__ = cancelled
        return as_problem(said, on)
    task.uncancel()
    next_step = "the session goes on; ask again to start a new daemon"
    return StateConflict("go on with", on, "the daemon was stopped", next_step)


def closing_answer(status: int, problem: WaypointError) -> bytes:
    """A whole answer to a request that was not read."""
    content = _error_body(problem)
    head = (
        f"HTTP/1.1 {status} \r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close"
    )
    return f"{head}\r\n\r\n".encode() + content


def _error_body(problem: WaypointError) -> bytes:
    return msgspec.json.encode({"error": problem.to_json()})


def _error_end(problem: WaypointError) -> dict[str, object]:
    return {"error": problem.to_json()}
