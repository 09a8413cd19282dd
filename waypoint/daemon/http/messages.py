"""Reading HTTP/1.1 requests from one connection and writing the answers, within limits of size and time.

h11 implements the protocol. Out of scope: parsing what a request means (reading.py), and serving it (conversation.py).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import h11
import msgspec

from waypoint.daemon.http.connection import Connection
from waypoint.daemon.http.problems import HttpProblem
from waypoint.model.errors import WaypointError
from waypoint.service.shapes import Download, Handed

PROTOCOL = b"waypoint-stream"  # in the header `Upgrade`
_UPGRADE_HEADERS = [(b"connection", b"Upgrade"), (b"upgrade", PROTOCOL)]
STAGES = b"waypoint-stages"  # the header with which a client asks for interim answers
_CLOSE = ("connection", "close")
_EVENTS_PER_TURN = 16  # parts of a request read (some 20 microseconds each) before other connections may compute


@dataclass(frozen=True, slots=True)
class Limits:
    headers_bytes: int = 16384
    # Seconds within which the client must send the headers, the whole body, or each piece of an uploaded body.
    incomplete_s: float = 10.0
    answer_s: float = 30.0  # seconds within which the client must read an answer, or a piece of an answer
    goodbye_s: float = 1.0  # seconds to wait for the client to close after the server has shut down its sending side
    connections: int = 512
    # How many of `connections` one user other than root and the home's owner may have. The same number is kept free for
    # root and the owner.
    connections_of_user: int = 128
    # How many requests of one such user are served at a time, not counting streams. This is less than the number of
    # threads that serve requests (lifetime.py), so that one user cannot occupy all threads.
    requests_of_user: int = 8


class Turn(Protocol):
    """Waits until the connection may compute again. `has_waited`: whether the connection has just waited for its
    client.
    """

    def __call__(self, *, has_waited: bool) -> Awaitable[None]: ...


class Messages:
    """The server's end of one connection. For each request call, in this order: `request`, `body` or `upload`, a method
    that answers, `next`.

    Calls raise ConnectionError if the client has closed, TimeoutError if the client does not read its answer.
    """

    def __init__(self, connection: Connection, limits: Limits, turn: Turn) -> None:
        self._connection = connection
        self._turn = turn
        self._limits = limits
        self._events = 0
        self._sending = asyncio.Lock()
        self._is_cut = False
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.headers_bytes)

    @property
    def rest(self) -> bytes:
        """The bytes that have arrived after the last request."""
        return self._http.trailing_data[0]

    @property
    def is_answered(self) -> bool:
        """Whether the head of the answer has been sent."""
        return self._http.our_state is not h11.SEND_RESPONSE

    def next(self) -> bool:
        """Prepare for the next request. Returns False if no request may follow on this connection."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def request(self, on_idle: Callable[[], None], on_busy: Callable[[], None]) -> h11.Request | None:
        """Read the request line and headers. Returns None if the client closes the connection instead.

        The wait for the first byte has no time limit; `on_idle` is called before it and `on_busy` after it. Raises
        HttpProblem.
        """
        has_waited = False
        if not self.rest:
            on_idle()
            try:
                data = self._connection.receive_now()
                if data is None:
                    has_waited, data = True, await self._connection.receive()
                self._http.receive_data(data)
            finally:
                on_busy()
        await self._turn(has_waited=has_waited)  # a client that sends many requests at once must not block the others
        event = await self._event(self._deadline())
        return event if isinstance(event, h11.Request) else None

    async def body(self, request: h11.Request, limit: int) -> bytes:
        """Read the whole body, at most `limit` bytes. Raises HttpProblem."""
        _check_announced(request, limit)
        body, deadline = bytearray(), self._deadline()
        while isinstance(event := await self._event(deadline), h11.Data):
            body += event.data
            _check_size(len(body), limit)
        return bytes(body)

    async def upload(self, request: h11.Request, limit: int) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives, at most `limit` bytes, without reading ahead. Each step may raise
        HttpProblem.
        """
        _check_announced(request, limit)
        size = 0
        while True:
            event = await self._event(self._deadline())
            if not isinstance(event, h11.Data):
                return
            size += len(event.data)
            _check_size(size, limit)
            yield bytes(event.data)

    async def answer(self, status: int, content: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Send an answer in JSON."""
        described = [("content-type", "application/json"), ("content-length", str(len(content))), *headers]
        if self._http.their_state is h11.SEND_BODY:
            described.append(_CLOSE)  # otherwise the rest of the request's body would be parsed as the next request
        await self._send(h11.Response(status_code=status, headers=described), h11.Data(content), h11.EndOfMessage())

    async def answer_in_pieces(self, status: int, download: Download) -> None:
        """Send an answer piece by piece, as the pieces are made. It is chunked (RFC 9112, 7.1) unless the client uses
        HTTP/1.0.

        Raises ConnectionError as soon as the client closes, and the exceptions of `download`.
        """
        async with contextlib.aclosing(download.pieces) as pieces:
            with self._connection.given_up_with_client():
                piece = await anext(pieces, None)
                await self._send(h11.Response(status_code=status, headers=[("content-type", download.kind)]))
                while piece is not None:
                    if isinstance(piece, Handed):
                        await self._hand_over(piece)
                    else:
                        await self._send(h11.Data(piece))
                    piece = await anext(pieces, None)
                await self._send(h11.EndOfMessage())

    async def _hand_over(self, piece: Handed) -> None:
        data = self._http.send(h11.Data(piece.content)) or b""
        async with asyncio.timeout(self._limits.answer_s):
            while not (sent := self._connection.send_now([data], [piece.descriptor])):
                await self._connection.wait_writable()
            await self._connection.send(data[sent:])

    async def break_off(self, problem: WaypointError) -> None:
        """Send the error in a chunk with the extension `error`, after a part of an answer in pieces. The last chunk of
        the answer must not follow: clients that do not know the extension would take the answer for complete.
        """
        if self._http.their_http_version == b"1.1":
            content = error_body(problem)
            await self._send_bytes(b"%x;error\r\n%b\r\n" % (len(content), content))

    async def switch_protocols(self) -> None:
        """Answer 101. The bytes that follow on the connection are not HTTP."""
        await self._send(h11.InformationalResponse(status_code=101, headers=_UPGRADE_HEADERS))

    async def tell(self, stage: bytes) -> bool:
        """Send the stage of the work, as an interim answer (RFC 9110, 15.2). Returns False after the answer's head."""
        async with self._sending:
            if not self.is_answered:
                interim = h11.InformationalResponse(status_code=102, headers=[(b"waypoint-stage", stage)])
                data = self._http.send(interim) or b""
                self._is_cut = True  # an answer cannot follow a part of an interim one
                await self._send_bytes(data)
                self._is_cut = False
            return not self.is_answered

    async def refuse(self, status: int, problem: WaypointError) -> None:
        """Answer with an error to a request that was not understood, or not read to its end. No request can follow."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            described = [("content-type", "application/json"), _CLOSE]
            content = error_body(problem)
            described.append(("content-length", str(len(content))))
            await self._send(h11.Response(status_code=status, headers=described), h11.Data(content), h11.EndOfMessage())

    def _deadline(self) -> float:
        """The event loop's time by which a read that begins now must be complete."""
        return asyncio.get_running_loop().time() + self._limits.incomplete_s

    async def _event(self, deadline: float) -> object:
        """Read the next part of the request. Raises HttpProblem if it is not HTTP, or incomplete at `deadline`."""
        self._events += 1
        if self._events % _EVENTS_PER_TURN == 0:
            await self._turn(has_waited=False)  # a body in one-byte chunks can have thousands of parts in the buffer
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise HttpProblem(error.error_status_hint, f"this is not HTTP: {error}") from None
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                async with asyncio.timeout_at(deadline):
                    self._http.receive_data(await self._connection.receive())
            except TimeoutError:
                said = f"the request was not complete after {self._limits.incomplete_s:g} s"
                raise HttpProblem(408, said) from None

    async def _send(self, *events: h11.Event) -> None:
        async with self._sending:
            if self._is_cut:
                raise ConnectionAbortedError("an interim answer could not be sent")
            await self._send_bytes(b"".join(self._http.send(event) or b"" for event in events))

    async def _send_bytes(self, data: bytes) -> None:
        sent = self._connection.send_now([data])
        if sent < len(data):  # otherwise no timer is needed
            async with asyncio.timeout(self._limits.answer_s):
                await self._connection.send(data[sent:])


def wants_stages(request: h11.Request) -> bool:
    """Whether the client asks for interim answers (not possible in HTTP/1.0)."""
    return request.http_version == b"1.1" and any(name == STAGES for name, _ in request.headers)


def wants_stream(request: h11.Request) -> bool:
    """Whether the request asks to switch to Waypoint's stream protocol (RFC 9110, 7.8: not possible in HTTP/1.0)."""
    tokens = [(name, part.strip()) for name, value in request.headers for part in value.lower().split(b",")]
    asked = (b"connection", b"upgrade") in tokens and (b"upgrade", PROTOCOL) in tokens
    return asked and request.http_version == b"1.1"


def error_body(problem: WaypointError) -> bytes:
    return msgspec.json.encode({"error": problem.to_json()})


def closing_answer(status: int, problem: WaypointError) -> bytes:
    """The bytes of an error answer that needs no request, after which the connection is closed."""
    content = error_body(problem)
    head = (
        f"HTTP/1.1 {status} \r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close"
    )
    return f"{head}\r\n\r\n".encode() + content


def _check_announced(request: h11.Request, limit: int) -> None:
    # h11 has checked that the length is a number of at most 20 digits.
    announced = next((value for name, value in request.headers if name == b"content-length"), b"0")
    _check_size(int(announced), limit)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise HttpProblem(413, f"the body may have at most {limit} bytes")
