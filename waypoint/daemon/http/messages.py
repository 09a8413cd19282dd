"""HTTP/1.1 messages on one connection: requests read and answers written, whole or in pieces, within limits.

h11 knows the protocol. Out of scope: what a request means (reading.py) and what is done about it (conversation.py).
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
from waypoint.service.shapes import Download

PROTOCOL = b"waypoint-stream"  # in the header `Upgrade`
_UPGRADE_HEADERS = [(b"connection", b"Upgrade"), (b"upgrade", PROTOCOL)]
_CLOSE = ("connection", "close")
_EVENTS_PER_TURN = 16  # parts of a request that are read, at some 20 microseconds each, before others have their turn


@dataclass(frozen=True, slots=True)
class Limits:
    headers_bytes: int = 16384
    # Seconds from the first byte of the headers, or of a whole body, to the last; for each piece of a streamed body.
    incomplete_s: float = 10.0
    # A body that is taken in pieces: so long its client is waited for in all, and a second more for each so many bytes.
    upload_s: float = 60.0
    upload_bytes_per_s: int = 16384
    answer_s: float = 30.0  # for the client to take an answer, or a piece of one
    goodbye_s: float = 1.0  # between our end of a connection and the client's
    connections: int = 512
    # How many of `connections` one user may have, who is neither root nor the home's owner. All such users together
    # leave as many free for root and the owner.
    connections_of_user: int = 128
    # Requests of one such user that are served at a time, without streams. Fewer than the threads that serve them
    # (lifetime.py), so that one user cannot occupy all threads.
    requests_of_user: int = 8


class Turn(Protocol):
    """Waits until a connection may compute again. `has_waited`: it has just waited for its client."""

    def __call__(self, *, has_waited: bool) -> Awaitable[None]: ...


class Messages:
    """The server's end of one connection. The calls for each request, in this order: `request`, `body` or `upload`, an
    answer, `next`.

    Calls raise ConnectionError if the client is gone, TimeoutError if it takes no answer.
    """

    def __init__(self, connection: Connection, limits: Limits, turn: Turn) -> None:
        self._connection = connection
        self._turn = turn
        self._limits = limits
        self._events = 0
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.headers_bytes)

    @property
    def rest(self) -> bytes:
        """The bytes that have arrived behind the last request."""
        return self._http.trailing_data[0]

    @property
    def is_answered(self) -> bool:
        """The head of the answer has been sent."""
        return self._http.our_state is not h11.SEND_RESPONSE

    def next(self) -> bool:
        """Make ready for another request; False if none may follow on this connection."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def request(self, on_idle: Callable[[], None], on_busy: Callable[[], None]) -> h11.Request | None:
        """The request line and headers; None if the client closes instead of asking.

        Waits for the first byte without a limit, between calls of `on_idle` and `on_busy`. Raises HttpProblem.
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
        await self._turn(has_waited=has_waited)  # requests that are there already follow each other without a wait
        event = await self._event(self._deadline())
        return event if isinstance(event, h11.Request) else None

    async def body(self, request: h11.Request, limit: int) -> bytes:
        """The whole body, of at most `limit` bytes. Raises HttpProblem."""
        _check_announced(request, limit)
        body, deadline = bytearray(), self._deadline()
        while isinstance(event := await self._event(deadline), h11.Data):
            body += event.data
            _check_size(len(body), limit)
        return bytes(body)

    async def upload(self, request: h11.Request, limit: int) -> AsyncGenerator[bytes, None]:
        """The body as it comes, of at most `limit` bytes; nothing is read ahead. Each step may raise HttpProblem."""
        _check_announced(request, limit)
        size, waited_s, now = 0, 0.0, asyncio.get_running_loop().time
        while True:
            began = now()
            event = await self._event(self._deadline())
            waited_s += now() - began
            if not isinstance(event, h11.Data):
                return
            size += len(event.data)
            if waited_s > self._limits.upload_s + size / self._limits.upload_bytes_per_s:
                raise HttpProblem(408, f"the body comes too slowly: {size} bytes in {waited_s:.0f} s")
            _check_size(size, limit)
            yield bytes(event.data)

    async def answer(self, status: int, content: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        """A whole answer in JSON."""
        described = [("content-type", "application/json"), ("content-length", str(len(content))), *headers]
        if self._http.their_state is h11.SEND_BODY:
            described.append(_CLOSE)  # what is left of the request would be taken for the next one
        await self._send(h11.Response(status_code=status, headers=described), h11.Data(content), h11.EndOfMessage())

    async def answer_in_pieces(self, status: int, download: Download) -> None:
        """An answer whose pieces are sent as they are made, chunked (RFC 9112, 7.1) unless the client has HTTP/1.0.

        Ends with ConnectionError once the client has closed, whatever it waits for then. What the making of a piece
        raises is raised here.
        """
        async with contextlib.aclosing(download.pieces) as pieces:
            with self._connection.given_up_with_client():
                piece = await anext(pieces, None)
                await self._send(h11.Response(status_code=status, headers=[("content-type", download.kind)]))
                while piece is not None:
                    await self._send(h11.Data(piece))
                    piece = await anext(pieces, None)
                await self._send(h11.EndOfMessage())

    async def switch_protocols(self) -> None:
        """Answer 101: what follows on the connection is no HTTP."""
        await self._send(h11.InformationalResponse(status_code=101, headers=_UPGRADE_HEADERS))

    async def refuse(self, status: int, problem: WaypointError) -> None:
        """Answer a request that was not read to its end, or not understood: nothing can follow on this connection."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            described = [("content-type", "application/json"), _CLOSE]
            content = error_body(problem)
            described.append(("content-length", str(len(content))))
            await self._send(h11.Response(status_code=status, headers=described), h11.Data(content), h11.EndOfMessage())

    def _deadline(self) -> float:
        """When what is begun now has to be complete, in the time of the event loop."""
        return asyncio.get_running_loop().time() + self._limits.incomplete_s

    async def _event(self, deadline: float) -> object:
        """The next part of the request. Raises HttpProblem if what comes is no HTTP, or not there at `deadline`."""
        self._events += 1
        if self._events % _EVENTS_PER_TURN == 0:
            await self._turn(has_waited=False)  # a body in chunks of one byte may have thousands of parts at hand
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
        data = b"".join(self._http.send(event) or b"" for event in events)
        sent = self._connection.send_now([data])
        if sent < len(data):  # no timer for what is taken at once
            async with asyncio.timeout(self._limits.answer_s):
                await self._connection.send(data[sent:])


def wants_stream(request: h11.Request) -> bool:
    """Whether the request asks for the switch to our protocol (RFC 9110, 7.8: not in HTTP/1.0)."""
    tokens = [(name, part.strip()) for name, value in request.headers for part in value.lower().split(b",")]
    asked = (b"connection", b"upgrade") in tokens and (b"upgrade", PROTOCOL) in tokens
    return asked and request.http_version == b"1.1"


def error_body(problem: WaypointError) -> bytes:
    return msgspec.json.encode({"error": problem.to_json()})


def closing_answer(status: int, problem: WaypointError) -> bytes:
    """A whole answer to a request that was not read."""
    content = error_body(problem)
    head = (
        f"HTTP/1.1 {status} \r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close"
    )
    return f"{head}\r\n\r\n".encode() + content


def _check_announced(request: h11.Request, limit: int) -> None:
    # h11 has checked that it is a number of at most 20 digits.
    announced = next((value for name, value in request.headers if name == b"content-length"), b"0")
    _check_size(int(announced), limit)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise HttpProblem(413, f"the body may have at most {limit} bytes")
