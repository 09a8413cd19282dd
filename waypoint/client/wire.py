"""The client's end of docs/protocol.md: HTTP/1.1 requests over a Unix socket, and the frames of an upgraded stream.

It reads only what the daemon sends: a status line, headers, a body with a length or in chunks. Each request has a
connection of its own, which costs less than finding out that a kept one belongs to a dead daemon.

Imports of the fast path: every `waypoint exec` loads this module, and Python needs 16 ms to start and load all that an
exec uses. So modules of the fast path import no standard module that adds 3 ms or more. Measured (Python 3.11, 50
starts each): http.client 32 ms, typing 12, json 8, socket 7, signal 5, enum 5. Instead they use the C modules
`_socket`, `_signal` and `_json`, and a constant TYPE_CHECKING, whose name type checkers know; imports below it, also of
collections.abc (2 ms), cost nothing. tests/cli/test_startup.py counts the imports. Other modules use the public names.
"""

import _socket
import os
import sys
import time

from waypoint.client.address import working_branch
from waypoint.model import plainjson
from waypoint.model.errors import Failed, WaypointError, from_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    class Shown(Protocol):
        """A long wait that the user sees."""

        def draw(self, stage: str) -> None:
            """Called ten times a second. `stage`: the stage of the work, in JSON; "" if it is not known."""

        def erase(self) -> None: ...


BRANCH_HEADER = "Waypoint-Branch"
STAGES_HEADER = "Waypoint-Stages"  # of a request: the client wants to know the stages of the work
_STAGE_HEADER = "waypoint-stage"  # of an interim answer (102): the stage, in JSON
PATIENCE_S, REDRAW_S = 0.5, 0.1  # a wait is shown after PATIENCE_S, and drawn again after each REDRAW_S
MAX_PAYLOAD_BYTES = 1 << 20  # the maximum payload of one frame, in both directions
MAX_HEAD_BYTES = 1 << 16
MAX_CHUNK_LINE_BYTES = 256
RECEIVE_BYTES = 1 << 18  # the most bytes of one recv: more than a socket's default buffer can contain
_HEAD_END = b"\r\n\r\n"
_PREFIX_BYTES = 5  # each frame begins with its kind (one byte) and the length of its payload (four bytes)
_INT_BYTES = 4
_PROCESSING = 102  # the status of an interim answer
_STREAMED = b"oe"  # kinds of frames that are passed on piece by piece, all others as a whole
_SO_MEMINFO = 55  # linux/asm-generic/socket.h; _socket lacks it
Socket = _socket.socket
_NO_WAIT = _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL


_shows: "list[Callable[[], Shown]]" = []


def show_waits(begin: "Callable[[], Shown]") -> None:
    """From now on, let the user see each wait for an answer that is longer than PATIENCE_S. `begin` begins to show one;
    it is called in the thread that waits.
    """
    _shows[:] = [begin]


class Wait:
    """One wait for the daemon. `stage`: what the daemon does, in JSON; "" if it is not known."""

    __slots__ = ("_due", "_shown", "stage")

    def __init__(self, stage: str = "") -> None:
        self.stage = stage
        self._shown: Shown | None = None
        self._due = time.monotonic() + PATIENCE_S

    def until_readable(self, fd: int, deadline: "float | None" = None) -> bool:
        """Wait until `fd` can be read, and show this wait if that takes long. Returns False at `deadline`
        (time.monotonic()). Returns at once if neither a deadline is given nor waits are shown: the read will wait.
        """
        if not _shows and deadline is None:
            return True
        import select

        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            now = time.monotonic()
            if _shows and now >= self._due:
                self.show()
                self._due = now + REDRAW_S
            ends = [one for one in (self._due if _shows else None, deadline) if one is not None]
            if poll.poll(max(0.0, min(ends) - now) * 1000 + 1):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def head(self, data: bytearray) -> "Head | None":
        """Like `parse_head`, but remove the interim answers before the head, and note their stages."""
        while (head := parse_head(data)) is not None and head.status == _PROCESSING:
            self.stage = head.headers.get(_STAGE_HEADER, "")
            del data[: head.size]
        return head

    def show(self) -> None:
        """Show this wait now, or draw it again."""
        if _shows:
            self._shown = self._shown or _shows[0]()
            self._shown.draw(self.stage)

    def end(self) -> None:
        if self._shown is not None:
            self._shown.erase()
            self._shown = None


class Cut(ConnectionError):
    """The connection ended in the middle of an answer: the daemon died or was replaced.

    `left_unread`: the daemon had not read all bytes that this client sent (unix(7): the client gets ECONNRESET then).
    """

    def __init__(self, said: str, *, left_unread: bool = False) -> None:
        super().__init__(said)
        self.left_unread = left_unread


class Head:
    """Status and headers of an answer. `size`: the length of the head in bytes."""

    __slots__ = ("headers", "size", "status")

    def __init__(self, status: int, headers: dict[str, str], size: int) -> None:
        self.status = status
        self.headers = headers
        self.size = size


def parse_head(data: "bytes | bytearray") -> Head | None:
    """The head of the answer at the start of `data`; None while it is incomplete. Raises Failed if it is not HTTP."""
    end = data.find(_HEAD_END)
    if end < 0:
        if len(data) > MAX_HEAD_BYTES:
            raise malformed("an answer whose head is too long")
        return None
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not code.isdecimal():
        raise malformed(f"{first[:60]!r} instead of an answer in HTTP")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Head(int(code), headers, end + len(_HEAD_END))


def send_request(
    path: str, method: str, target: str, body: object = None, *, upgrade: bool = False, stages: bool = True
) -> _socket.socket:
    """Connect to the socket at `path` and send one request, without reading the answer. `stages`: the caller can read
    stages in it.

    Raises OSError from connect (FileNotFoundError, ConnectionRefusedError, PermissionError).
    """
    content = b"" if body is None else plainjson.encode(body).encode()
    connection = "Upgrade\r\nUpgrade: waypoint-stream" if upgrade else "close"
    kind = "Content-Type: application/json\r\n" if content else ""
    branch = working_branch()
    kind += f"{BRANCH_HEADER}: {branch}\r\n" if branch else ""
    kind += f"{STAGES_HEADER}: 1\r\n" if _shows and stages else ""
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: waypoint\r\nConnection: {connection}\r\n"
        f"{kind}Content-Length: {len(content)}\r\n\r\n"
    )
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
        sock.sendall(head.encode("ascii") + content, _socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError):
        return sock  # the daemon refuses this client without reading; its answer can still be received
    except BaseException:
        sock.close()
        raise
    return sock


def request(path: str, method: str, target: str, body: object = None) -> object:
    """Send one request and return its decoded answer (None for an empty body).

    Raises the WaypointError in the answer, OSError if no daemon listens, Cut if the answer breaks off.
    """
    return request_status(path, method, target, body)[1]


def request_status(path: str, method: str, target: str, body: object = None) -> "tuple[int, object]":
    """Send one request like `request`; return the HTTP status and the decoded answer."""
    sock = send_request(path, method, target, body)
    try:
        head, data = read_head(sock)
        return head.status, result_of(head.status, b"".join(iter_body(sock, head, data)))
    finally:
        sock.close()


def request_pieces(path: str, method: str, target: str, body: object = None) -> "Iterator[bytes]":
    """Send one request; yield the body of the answer as it arrives. Raises as `request`, at the first step."""
    sock = send_request(path, method, target, body)
    try:
        head, data = read_head(sock)
        pieces = iter_body(sock, head, data)
        if head.status != 200:
            result_of(head.status, b"".join(pieces))
        yield from pieces
    finally:
        sock.close()


class Handover:
    """An answer that brings an open descriptor of the daemon's. `kind`: the word beside it."""

    __slots__ = ("_data", "_is_last", "_sock", "descriptor", "kind")

    def __init__(self, path: str, target: str, body: object) -> None:
        """Raises as `request`."""
        self._sock = send_request(path, "POST", target, body)
        self._data = bytearray()
        self.descriptor = -1
        self.kind = b""
        self._is_last = False
        wait = Wait()
        try:
            try:
                while (head := wait.head(self._data)) is None:
                    wait.until_readable(self._sock.fileno())
                    self._receive()
            finally:
                wait.end()
            del self._data[: head.size]
            if head.status != 200:
                result_of(head.status, b"".join(iter_body(self._sock, head, self._data)))
            while not self._take() and not self._is_last:
                self._receive()
            if self.descriptor < 0:
                raise malformed("an answer without a descriptor")
        except BaseException:
            self.close()
            raise

    def finish(self) -> None:
        """Wait for the end of the answer. Raises the WaypointError in it, or Cut."""
        while not self._is_last:
            self._receive()
            self._take()

    def _take(self) -> bytes:
        found, self._is_last = take_chunks(self._data)
        self.kind += found
        return self.kind

    def close(self) -> None:
        self._sock.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def _receive(self) -> None:
        data, passed, _flags, _address = self._sock.recvmsg(
            RECEIVE_BYTES, _socket.CMSG_SPACE(_INT_BYTES), _socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            raise Cut("the answer ended too early")
        self._data += data
        for _level, _kind, content in passed:
            self.descriptor = int.from_bytes(content[:_INT_BYTES], sys.byteorder)


def read_head(sock: _socket.socket) -> "tuple[Head, bytearray]":
    """The head of the answer, and the bytes received after it. Raises Cut, or Failed if it is not HTTP."""
    data, wait = bytearray(), Wait()
    try:
        while (head := wait.head(data)) is None:
            wait.until_readable(sock.fileno())
            data += _receive(sock)
    finally:
        wait.end()
    del data[: head.size]
    return head, data


def iter_body(sock: _socket.socket, head: Head, data: bytearray) -> "Iterator[bytes]":
    """Yield the body of an answer as it arrives, in pieces of any size. `data`: from `read_head`.

    Raises Cut if the body breaks off, Failed if it is not HTTP.
    """
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        while not (found := take_chunks(data))[1]:
            yield found[0]
            data += _receive(sock)
        yield found[0]
        return
    left = _length(head)
    while left > len(data):
        left -= len(data)
        yield bytes(data)
        data[:] = _receive(sock)
    yield bytes(data[:left])


def take_chunks(data: bytearray) -> "tuple[bytes, bool]":
    """Remove the complete chunks (RFC 9112, 7.1) at the start of `data`. Returns their content, and whether the last
    chunk was among them. Raises Failed for malformed chunks, and the error in a chunk with the extension `error`.
    """
    found: list[bytes] = []
    start = 0
    is_last = False
    while not is_last:
        end = data.find(b"\r\n", start)
        if end < 0:
            if len(data) - start > MAX_CHUNK_LINE_BYTES:
                raise malformed("a chunk without a size")
            break
        size, is_error = _parse_chunk_line(bytes(data[start:end]))
        rest = end + 2 + size
        if len(data) < rest + 2:
            break
        if data[rest : rest + 2] != b"\r\n":  # no trailers: our daemon sends none
            raise malformed("a chunk that is longer than its size")
        found.append(bytes(data[end + 2 : rest]))
        if is_error:
            result_of(500, found[-1])
        start = rest + 2
        is_last = not size
    del data[:start]
    return b"".join(found), is_last


def _parse_chunk_line(line: bytes) -> "tuple[int, bool]":
    """The size of a chunk, and whether it has the extension `error`."""
    digits, _, extension = line.partition(b";")
    digits = digits.strip().lower()
    if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdef"):
        raise malformed(f"a chunk of size {line[:60]!r}")
    return int(digits, 16), extension.strip() == b"error"


def frame(kind: str, payload: bytes = b"") -> bytes:
    """One frame (docs/protocol.md, section 2). `payload`: at most MAX_PAYLOAD_BYTES."""
    return kind.encode("ascii") + len(payload).to_bytes(4, "big") + payload


class Outgoing:
    """The queue of frames to send on one connection."""

    __slots__ = ("_is_flushing", "_line", "_remembers", "_sent", "_sock")

    def __init__(self, sock: _socket.socket) -> None:
        self._sock = sock
        self._line: list[bytes] = []
        self._is_flushing = False
        self._remembers = False
        self._sent: list[bytes] = []

    def remember(self) -> None:
        """From now on keep sent frames until the daemon has read them, for `not_taken`."""
        self._remembers = True

    def queue(self, kind: str, payload: bytes = b"") -> None:
        """Append a frame; `flush` sends it. Safe in a signal handler."""
        self._line.append(frame(kind, payload))

    def flush(self) -> int:
        """Send as much as possible without blocking. Returns the number of bytes left. A closed connection is reported
        by `Channel.fill`, not by this method.

        Safe in a signal handler: if the handler has interrupted another `flush`, that one sends the frames.
        """
        while self._line and not self._is_flushing:
            self._is_flushing = True
            try:
                if self._remembers and self._is_all_read():
                    self._sent.clear()
                first = self._line[0]
                sent = self._sock.send(first, _NO_WAIT)
                self._line[:1] = [first[sent:]] if sent < len(first) else []
                if self._remembers:
                    self._sent.append(first)
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                break
            finally:
                self._is_flushing = False
        return sum(map(len, self._line))

    def unsent(self, kind: str) -> list[bytes]:
        """Payloads of the frames of `kind` of which no byte was sent."""
        return _payloads(self._line, kind)

    def not_taken(self, kind: str, cut: Cut) -> list[bytes]:
        """Return, after a cut, the payloads of the frames of `kind` that the daemon has not read. A frame that it may
        have read in part is left out.
        """
        return [*(_payloads(self._sent, kind) if cut.left_unread else []), *self.unsent(kind)]

    def _is_all_read(self) -> bool:
        # Bytes that the other side of a Unix socket has not read count as the sender's memory: the third number of
        # SO_MEMINFO, SK_MEMINFO_WMEM_ALLOC (linux/sock_diag.h).
        numbers = self._sock.getsockopt(_socket.SOL_SOCKET, _SO_MEMINFO, 12)
        return not any(numbers[8:12])


class Channel:
    """One upgraded connection: frames in both directions.

    The constructor sends the request; `take` reads the head of the answer before the first frame.
    """

    __slots__ = ("_buffer", "_end", "_kind", "_left", "_start", "_view", "is_open", "out", "sock")

    def __init__(self, path: str, target: str, body: object, *, stages: bool = False) -> None:
        """`stages`: the caller shows the stages in `n` frames."""
        self.sock = send_request(path, "POST", target, body, upgrade=True, stages=stages)
        self.is_open = False
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._kind = self._left = 0  # the current frame: 0 between frames; payload bytes still to come
        self.out = Outgoing(self.sock)

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()

    def fill(self, *, wait: bool = True) -> bool:
        """Receive once. Returns False if there is nothing to receive (without `wait`). Raises Cut at the end."""
        if self._end == len(self._buffer):
            self._make_room(0)
        flags = 0 if wait else _NO_WAIT
        try:
            got = self.sock.recv_into(self._view[self._end :], 0, flags)
        except BlockingIOError:
            return False
        except ConnectionResetError as error:
            raise Cut(str(error), left_unread=True) from error
        if not got:
            raise Cut("the stream ended without its last frame")
        self._end += got
        return True

    def take(self) -> tuple[int, memoryview] | None:
        """The next frame (kind, payload), or the next piece of an `o` or `e` frame; None if `fill` is needed first.

        The next `fill` overwrites the payload. Raises the daemon's error if it refused the upgrade.
        """
        if not self.is_open and not self._take_head():
            return None
        while True:
            have = self._end - self._start
            if not self._kind:
                if have < _PREFIX_BYTES:
                    self._make_room(_PREFIX_BYTES)
                    return None
                self._begin_frame()
                continue
            is_streamed = self._kind in _STREAMED
            size = min(self._left, have) if is_streamed else self._left
            if size > have or (is_streamed and not size):
                self._make_room(size)
                return None
            return self._payload(size)

    def _take_head(self) -> bool:
        data = bytes(self._view[self._start : self._end])
        head = parse_head(data)
        if head is None:
            return False
        if head.status != 101:
            content = _whole_body(head, data)
            if content is None:
                self._make_room(len(data) + 1)
                return False
            result_of(head.status, content)
            raise malformed(f"status {head.status} as the answer to an upgrade")
        self._start += head.size
        self.is_open = True
        return True

    def _begin_frame(self) -> None:
        start = self._start
        self._kind = self._buffer[start]
        self._left = int.from_bytes(self._view[start + 1 : start + _PREFIX_BYTES], "big")
        self._start = start + _PREFIX_BYTES
        if self._left > MAX_PAYLOAD_BYTES:
            raise malformed(f"a frame of {self._left} bytes")
        if not self._left and self._kind in _STREAMED:
            self._kind = 0  # nothing to pass on

    def _payload(self, size: int) -> tuple[int, memoryview]:
        kind, start = self._kind, self._start
        self._start = start + size
        self._left -= size
        if not self._left:
            self._kind = 0
        return kind, self._view[start : start + size]

    def _make_room(self, needed: int) -> None:
        """Move the remaining bytes to the front, so that `needed` bytes fit and one more can be received."""
        rest = bytes(self._view[self._start : self._end])
        if max(needed, len(rest)) >= len(self._buffer):
            self._buffer = bytearray(2 * max(needed, len(rest)))
            self._view = memoryview(self._buffer)
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)


def _payloads(frames: list[bytes], kind: str) -> list[bytes]:
    # The first entry can be the rest of a frame, which does not equal any whole frame.
    return [item[_PREFIX_BYTES:] for item in frames if item == frame(kind, item[_PREFIX_BYTES:])]


def _receive(sock: _socket.socket) -> bytes:
    """At least one byte. Raises Cut at the end of the connection."""
    try:
        piece = sock.recv(RECEIVE_BYTES)
    except ConnectionResetError as error:
        raise Cut(str(error)) from error
    if not piece:
        raise Cut("the daemon closed the connection before it answered")
    return piece


def _length(head: Head) -> int:
    length = head.headers.get("content-length", "0")
    if not length.isdecimal() or "transfer-encoding" in head.headers:
        raise malformed("an answer without a length")
    return int(length)


def _whole_body(head: Head, data: bytes) -> bytes | None:
    """The body after `head` in `data`; None while it is incomplete."""
    end = head.size + _length(head)
    return data[head.size : end] if len(data) >= end else None


def result_of(status: int, content: bytes) -> object:
    """The value in an answer's body. Raises the error in it."""
    try:
        value = plainjson.decode(content) if content else None
    except ValueError as error:
        raise malformed(f"status {status} and a body that is no JSON ({error})") from error
    if 200 <= status < 300:
        return value
    parts = value.get("error") if isinstance(value, dict) else None
    if not isinstance(parts, dict):
        raise malformed(f"status {status} without an error")
    raise from_json(parts)


def malformed(what: str) -> WaypointError:
    """The error for an answer that this client cannot understand. `what`: a description of the answer."""
    next_step = "if the daemon has another version: waypoint daemon stop, and try again"
    return Failed("understand", "the daemon", f"it sent {what}", next_step)
