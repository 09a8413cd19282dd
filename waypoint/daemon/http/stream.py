"""The two ends of an upgraded connection (docs/protocol.md, section 2): the Inlet and Outlet of model/streams.py."""

import asyncio
import struct

import msgspec

from waypoint.daemon.http.connection import Connection
from waypoint.linux.tasks import pauses
from waypoint.model.streams import Frame

MAX_PAYLOAD_BYTES = 1 << 20
MAX_SIGNAL_NAME_BYTES = 16
# Frames of this size or larger wait while a session is frozen for a capture. Keystrokes and their echo are smaller.
BULK_BYTES = 4096
# A client that reads as fast as the daemon writes would never make the writing task wait. After this many bytes the
# task lets others run.
YIELD_AFTER_BYTES = 1 << 17
# A client that sends frames faster than they are handled would never make the reading task wait. After this many frames
# the task lets others run.
FRAMES_PER_TURN = 16

_HEADER = struct.Struct(">cI")


class StreamInlet:
    """Frames from the client. Only one task may receive at a time."""

    def __init__(self, connection: Connection, early: bytes) -> None:
        """`early`: the bytes that arrived together with the request, after its end."""
        self._connection = connection
        self._buffer = bytearray(early)
        self._over = False
        self._frames = 0
        self.complaint = ""  # how the client violated the protocol, if it did

    async def receive(self) -> Frame | None:
        if self._frames % FRAMES_PER_TURN == FRAMES_PER_TURN - 1:
            await asyncio.sleep(0)  # before a frame is taken, so that a cancelled task loses none
        while not self._over:
            frame = self._take()
            if frame is not None:
                self._frames += 1
                return frame
            if not self._over:
                await self._fill()
        return None

    async def _fill(self) -> None:
        try:
            data = await self._connection.receive()
        except ConnectionError:
            data = b""
        if data:
            self._buffer += data
        else:
            self._over = True

    def _take(self) -> Frame | None:
        if len(self._buffer) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack_from(self._buffer)
        self.complaint = _complaint(kind, length)
        if self.complaint:
            self._over = True
            return None
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(memoryview(self._buffer)[_HEADER.size : end])
        del self._buffer[:end]
        return Frame(kind.decode(), payload)


def _complaint(kind: bytes, length: int) -> str:
    if kind not in (b"i", b"w", b"k"):
        return f"a client sends frames of kind i, w and k, not {kind!r}"
    if kind == b"w" and length != 4:
        return f"a 'w' frame has 4 bytes, not {length}"
    limit = MAX_SIGNAL_NAME_BYTES if kind == b"k" else MAX_PAYLOAD_BYTES
    return f"a {kind.decode()!r} frame has at most {limit} bytes, not {length}" if length > limit else ""


class StreamOutlet:
    """Frames to the client. Any number of tasks may send at the same time; frames are never mixed.

    If a task is cancelled while it sends a frame, the client gets the whole frame or nothing of it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()
        self._rest = b""  # the unsent bytes of a frame whose sender was cancelled in the middle of it
        self._without_pause = 0
        self.broken = False  # whether the client has closed the connection

    async def output(self, data: bytes | memoryview) -> None:
        await self._payload(b"o", data)

    async def errors(self, data: bytes | memoryview) -> None:
        await self._payload(b"e", data)

    async def note(self, facts: dict[str, object]) -> None:
        await self._frame(b"n", memoryview(msgspec.json.encode(facts)))

    async def end(self, facts: dict[str, object]) -> None:
        """Send the `x` frame, after which nothing may be sent."""
        await self._frame(b"x", memoryview(msgspec.json.encode(facts)))

    async def _payload(self, kind: bytes, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), MAX_PAYLOAD_BYTES):
            if len(view) >= BULK_BYTES and pauses.are_under_way():
                await asyncio.to_thread(pauses.wait)
            await self._frame(kind, view[start : start + MAX_PAYLOAD_BYTES])

    async def _frame(self, kind: bytes, payload: memoryview) -> None:
        async with self._turn:
            if self._rest:
                await self._push([self._rest])
            await self._push([_HEADER.pack(kind, len(payload)), payload])
        if self._without_pause > YIELD_AFTER_BYTES:
            self._without_pause = 0
            await asyncio.sleep(0)

    async def _push(self, parts: list[bytes | memoryview]) -> None:
        """Send `parts`; if cancelled after the first byte, keep the rest for the next frame's sender."""
        begun = bool(self._rest)
        try:
            while parts:
                sent = self._connection.send_now(parts)
                parts = _behind(parts, sent)
                begun = begun or sent > 0
                self._without_pause += sent
                if parts:
                    self._without_pause = 0
                    await self._connection.wait_writable()
            self._rest = b""
        except ConnectionError:
            self.broken = True
            raise
        except asyncio.CancelledError:
            if begun:
                self._rest = b"".join(parts)
            raise


def _behind(parts: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """The rest of `parts` after the first `sent` bytes."""
    for index, part in enumerate(parts):
        if sent < len(part):
            return [part[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []
