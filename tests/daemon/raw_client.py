"""A client that only wraps a socket, so that tests can send any bytes."""

import json
import socket
import struct
from typing import Any, NamedTuple

from tests.waiting import DEADLINE_S


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """A blocking client with a timeout for every call, so that a daemon that does not answer fails the test."""

    def __init__(self, path: str, timeout_s: float = DEADLINE_S) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            # No timeout yet: with a timeout, connect would fail instead of waiting for a place in a full backlog.
            self.sock.connect(path)
        except OSError:
            self.sock.close()
            raise
        self.sock.settimeout(timeout_s)
        self._buffer = b""

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, method: str, target: str, body: object = None, headers: str = "") -> Answer:
        """Send a request; return its answer. `body` becomes JSON unless it is bytes; `headers` are lines with CRLF."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{method} {target} HTTP/1.1\r\nHost: waypoint\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
        self.send(head.encode() + content)
        return self.answer()

    def upgrade(self, target: str, body: object = None, early: bytes = b"") -> Answer:
        """Request a stream; `early` is sent right after the request."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"POST {target} HTTP/1.1\r\nHost: waypoint\r\nConnection: Upgrade\r\nUpgrade: waypoint-stream\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self.send(head.encode() + content + early)
        return self.answer()

    def answer(self) -> Answer:
        answer = self.head()
        if answer.headers.get("transfer-encoding") == "chunked":
            return answer._replace(body=b"".join(iter(self.chunk, b"")))
        return answer._replace(body=self.take(int(answer.headers.get("content-length", 0))))

    def head(self) -> Answer:
        """Read the head of an answer. The body is read with `chunk` and `take`."""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Answer(int(first.split()[1]), headers, b"")

    def chunk(self) -> bytes:
        """Read the next chunk of a chunked body; the last is empty."""
        while b"\r\n" not in self._buffer:
            self._more()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        size, _, self.extension = line.partition(b";")
        data = self.take(int(size, 16))
        assert self.take(2) == b"\r\n"
        return data

    def take(self, size: int) -> bytes:
        """Read exactly `size` bytes. Raise EOFError if the daemon closes the connection before."""
        while len(self._buffer) < size:
            self._more()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def frame(self) -> tuple[str, bytes]:
        kind, length = struct.unpack(">cI", self.take(5))
        return kind.decode(), self.take(length)

    def send_frame(self, kind: str, payload: bytes) -> None:
        self.send(struct.pack(">cI", kind.encode(), len(payload)) + payload)

    def ended(self) -> bool:
        """Wait for the next byte; return True if the connection has ended instead."""
        try:
            self.take(1)
        except (EOFError, ConnectionError):
            return True
        return False

    def _more(self) -> None:
        data = self.sock.recv(1 << 20)
        if not data:
            raise EOFError("the daemon closed the connection")
        self._buffer += data


def frame(kind: str, payload: bytes) -> bytes:
    return struct.pack(">cI", kind.encode(), len(payload)) + payload
