"""Streams that are shown on a terminal: the client's end, which outlives the daemon it began with.

They have the shape of shellwrap.proxy.Remote. When a stream is cut, the next daemon is asked to go on with it, and is
given the input that the old one had not read. What that had read and not passed on is lost.
"""

import os
import time

from waypoint.client import plainjson, wire
from waypoint.client.link import open_channel, quote_branch
from waypoint.model.errors import Failed, from_json
from waypoint.model.paths import log_path

NOTICE_AFTER_S = 1.0
NOTICE = b"\r\n[waypoint: waiting for the daemon]\r\n"
# So many daemons in a row may take the request and die before they have answered it.
MAX_FRUITLESS = 5


class _Line:
    """The connection under a stream: opened again with daemon after daemon."""

    def __init__(self, home: str, branch: str, verb: str, request: dict[str, object]) -> None:
        self._home = home
        self._on = f"branch {branch}"
        self._target = f"/v1/sessions/{quote_branch(branch)}/{verb}"
        self._fruitless = 0
        self._cut_at: float | None = None  # since when we wait for a daemon, until it has been said
        self.channel = self._open(request)

    def note_open(self) -> None:
        """A daemon has taken the stream."""
        self._fruitless = 0
        self._cut_at = None

    def open_after(self, cut: wire.Cut, request: dict[str, object]) -> None:
        """Ask the next daemon, and give it what was typed and not taken. Raises Failed if daemon after daemon dies."""
        self._fruitless += 1
        if self._fruitless > MAX_FRUITLESS:
            raise self.failed(f"{MAX_FRUITLESS} daemons in a row went away")
        if self._fruitless == 1:
            self._cut_at = time.monotonic()
        typed = self.channel.out.not_taken("i", cut)
        self.reopen(request)
        for data in typed:
            self.channel.out.queue("i", data)

    def reopen(self, request: dict[str, object]) -> None:
        self.channel.close()
        self.channel = self._open(request)

    def due_s(self) -> float | None:
        """Seconds until `notice` has something to say."""
        return None if self._cut_at is None else self._cut_at + NOTICE_AFTER_S - time.monotonic()

    def notice(self) -> bytes:
        """What a person should be told of the wait, once it has become long."""
        remaining_s = self.due_s()
        if remaining_s is None or remaining_s > 0:
            return b""
        self._cut_at = None
        return NOTICE

    def failed(self, said: str) -> Failed:
        return Failed("stay connected with", self._on, said, f"see {log_path(self._home)}")

    def _open(self, request: dict[str, object]) -> wire.Channel:
        try:
            channel = open_channel(self._home, self._target, request)
        except wire.Cut as cut:
            raise self.failed(str(cut)) from cut
        channel.out.remember()
        return channel


class TerminalStream:
    """A stream of the branch's session on a terminal. No method waits, but for starting a daemon where none is left.

    `end` has the fields of the `x` frame once `receive` has returned None.
    """

    def __init__(self, home: str, branch: str, verb: str, request: dict[str, object]) -> None:
        """Ask for the stream; a refusal is raised by `receive`. Raises as `open_channel`."""
        self.end: dict[str, object] = {}
        self._line = _Line(home, branch, verb, request)

    def fileno(self) -> int:
        return self._line.channel.fileno()

    def receive(self) -> bytes | None:
        """Output that has arrived, b"" if there is none, None after the end.

        Raises the daemon's error, also when it refuses to go on, and Failed if that is not possible.
        """
        if self.end:
            return None
        output = bytearray(self._line.notice())
        try:
            if self._line.channel.fill(wait=False):
                output += self._take()
        except wire.Cut as cut:
            self._line.open_after(cut, self._request_after(cut))
        return bytes(output) or (None if self.end else b"")

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), wire.MAX_PAYLOAD_BYTES):
            self._line.channel.out.queue("i", data[start : start + wire.MAX_PAYLOAD_BYTES])

    def flush(self) -> int:
        return self._line.channel.out.flush()

    def resize(self, rows: int, cols: int) -> None:
        self._line.channel.out.queue("w", rows.to_bytes(2, "big") + cols.to_bytes(2, "big"))

    def repaint(self) -> None:
        """A command's output cannot be had again; programs that use the whole screen repaint after `resize`."""

    def due_s(self) -> float | None:
        return self._line.due_s()

    def close(self) -> None:
        self._line.channel.close()

    def _request_after(self, cut: wire.Cut) -> dict[str, object]:
        """What to ask the next daemon. Raises Failed if it could not go on."""
        raise self._line.failed(str(cut))

    def _note(self, facts: dict[str, object]) -> None:
        """An `n` frame has come."""

    def _take(self) -> bytes:
        output = bytearray()
        channel = self._line.channel
        while not self.end and (item := channel.take()) is not None:
            kind, payload = chr(item[0]), item[1]
            if kind == "o":
                output += payload
            elif kind == "n":
                self._note(plainjson.decode_object(bytes(payload)))
            elif kind == "x":
                self.end = plainjson.decode_object(bytes(payload))
        if channel.is_open:
            self._line.note_open()
        parts = self.end.get("error")
        if isinstance(parts, dict):
            raise from_json(parts)
        return bytes(output)


class Attachment(TerminalStream):
    """The session's own terminal. The daemon sends what repaints the screen first, also after a cut."""

    def __init__(self, home: str, branch: str, rows: int, cols: int) -> None:
        self._size = (rows, cols)
        super().__init__(home, branch, "attach", self._request())

    def resize(self, rows: int, cols: int) -> None:
        self._size = (rows, cols)
        super().resize(rows, cols)

    def repaint(self) -> None:
        """Attach once more, since that is what the daemon sends the screen for."""
        self._line.reopen(self._request())

    def _request_after(self, cut: wire.Cut) -> dict[str, object]:
        return self._request()

    def _request(self) -> dict[str, object]:
        rows, cols = self._size
        return {"rows": rows, "cols": cols}


class CommandTerminal(TerminalStream):
    """An `exec --tty`, which goes on with the next daemon, or a `run -t`, which is lost with its daemon."""

    def __init__(self, home: str, branch: str, verb: str, request: dict[str, object]) -> None:
        self._exec_id = ""
        self._received = 0
        self._size: tuple[int, int] | None = None
        self._first = {**request, "id": os.urandom(8).hex()} if verb == "exec" else request
        super().__init__(home, branch, verb, self._first)

    def resize(self, rows: int, cols: int) -> None:
        self._size = (rows, cols)
        super().resize(rows, cols)

    def _note(self, facts: dict[str, object]) -> None:
        if isinstance(facts.get("exec"), str):
            self._exec_id = str(facts["exec"])
            if self._size:  # what was said of it before was said too early, or to a daemon that is gone
                super().resize(*self._size)

    def _take(self) -> bytes:
        output = super()._take()
        self._received += len(output)
        return output

    def _request_after(self, cut: wire.Cut) -> dict[str, object]:
        if "id" not in self._first:
            raise self._line.failed(str(cut))
        if not self._exec_id:  # whether it has begun, the daemon knows by its id
            return self._first
        return {"resume": self._exec_id, "offset": self._received}
