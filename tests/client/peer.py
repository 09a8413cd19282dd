"""A scripted daemon that speaks docs/protocol.md and can close the connection at any point.

A thread runs the next script for each connection. Exceptions of a script are raised in the test at the end.
"""

import contextlib
import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S


class Talk:
    """The daemon's side of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(PATIENCE_S)
        self.sock = sock
        self._data = b""

    def request(self) -> tuple[str, dict[str, Any]]:
        """Read a request; return `METHOD target` and the decoded body."""
        while b"\r\n\r\n" not in self._data:
            self._receive()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers["content-length"])
        while len(self._data) < length:
            self._receive()
        body, self._data = self._data[:length], self._data[length:]
        method, target, version = first.split(" ")
        assert version == "HTTP/1.1"
        assert headers["host"]
        return f"{method} {target}", json.loads(body) if body else {}

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.sock.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)

    def upgrade(self) -> None:
        self.sock.sendall(b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: waypoint-stream\r\n\r\n")

    def send(self, kind: str, payload: bytes | dict[str, Any] = b"") -> None:
        data = json.dumps(payload).encode() if isinstance(payload, dict) else payload
        self.sock.sendall(kind.encode() + len(data).to_bytes(4, "big") + data)

    def frame(self) -> tuple[str, bytes] | None:
        """Read the next frame of the client; return None if the client has closed the connection."""
        while len(self._data) < 5 or len(self._data) < 5 + int.from_bytes(self._data[1:5], "big"):
            piece = self.sock.recv(65536)
            if not piece:
                assert not self._data, "the client closed in the middle of a frame"
                return None
            self._data += piece
        size = int.from_bytes(self._data[1:5], "big")
        kind, payload = chr(self._data[0]), self._data[5 : 5 + size]
        self._data = self._data[5 + size :]
        return kind, payload

    def input(self) -> bytes:
        """Read input frames up to the end of the input."""
        whole = b""
        while (frame := self.frame()) != ("i", b""):
            assert frame is not None, "the client closed before the end of its input"
            assert frame[0] == "i"
            whole += frame[1]
        return whole

    def _receive(self) -> None:
        piece = self.sock.recv(65536)
        assert piece, "the client closed in the middle of a request"
        self._data += piece


Script = Callable[[Talk], None]


@contextlib.contextmanager
def listening(path: Path, *scripts: Script) -> Iterator[None]:
    """Listen on `path`; at the end, wait until every script has run."""
    waiting: queue.SimpleQueue[Script] = queue.SimpleQueue()
    for script in scripts:
        waiting.put(script)
    problems: list[BaseException] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        listener.settimeout(PATIENCE_S)

        def serve() -> None:
            try:
                for _ in scripts:
                    sock, _ = listener.accept()
                    with sock:
                        waiting.get_nowait()(Talk(sock))
            except BaseException as problem:  # raised in the test
                problems.append(problem)
                listener.close()  # a client must not wait for an answer

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join(PATIENCE_S)
            path.unlink()
    if problems:
        raise problems[0]
