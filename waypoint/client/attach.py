"""Streams that are shown on a terminal. If the daemon dies, the next daemon continues the stream.

The classes implement shellwrap.proxy.Remote. After a cut, the client sends the next daemon the input that the old
daemon had not read. Input that the old daemon had read, but not yet typed, is lost.
"""

import os
import time
from collections.abc import Callable, Mapping

from waypoint.client import wire
from waypoint.client.link import open_channel, quote_branch
from waypoint.model import plainjson
from waypoint.model.errors import Failed, from_json
from waypoint.model.outcomes import degraded_lines
from waypoint.model.paths import spelled

NOTICE_AFTER_S = 1.0  # NOTICE is shown after so long a wait for a daemon
NOTICE = b"\r\n[waypoint: waiting for the daemon]\r\n"
# How many daemons in a row may accept the request and die before they answer.
MAX_DEATHS = 5


class _Connection:
    """The connection of a stream. It is opened again with each new daemon."""

    def __init__(self, home: str, branch: str, verb: str, request: dict[str, object]) -> None:
        self._home = home
        self._branch = branch
        self._on = f"branch {branch}"
        self._target = f"/v1/sessions/{quote_branch(branch)}/{verb}"
        self._deaths = 0
        self._cut_at: float | None = None  # time.monotonic() when the wait for a daemon began; None: no notice is due
        self.channel = self._open(request)

    def note_open(self) -> None:
        """Note that a daemon has accepted the stream, and reset the count of dead daemons."""
        self._deaths = 0
        self._cut_at = None

    def open_after(self, cut: wire.Cut, request: dict[str, object]) -> None:
        """Send `request` to the next daemon, with the input that the dead daemon had not read. Raises Failed after the
        deaths of MAX_DEATHS daemons in a row.
        """
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            raise self.failed(f"{MAX_DEATHS} daemons in a row died")
        if self._deaths == 1:
            self._cut_at = time.monotonic()
        typed = self.channel.out.not_taken("i", cut)
        self.reopen(request)
        for data in typed:
            self.channel.out.queue("i", data)

    def reopen(self, request: dict[str, object]) -> None:
        self.channel.close()
        self.channel = self._open(request)

    def due_s(self) -> float | None:
        """Seconds until `notice` returns a text; None if no text is due."""
        return None if self._cut_at is None else self._cut_at + NOTICE_AFTER_S - time.monotonic()

    def notice(self) -> bytes:
        """NOTICE, once for each long wait for a daemon; b"" at other times."""
        remaining_s = self.due_s()
        if remaining_s is None or remaining_s > 0:
            return b""
        self._cut_at = None
        return NOTICE

    def lost_run(self, said: str) -> Failed:
        """The error for a `run` whose daemon has died."""
        look = spelled(self._home, "run", "-b", self._branch, "--", "ps", "ax")
        next_step = f"check whether the command is still running before you start it again: {look}"
        return Failed("follow the command in", self._on, said, next_step)

    def failed(self, said: str) -> Failed:
        next_step = f"see the daemon's log: {spelled(self._home, 'daemon', 'logs')}"
        return Failed("stay connected with", self._on, said, next_step, code="connection-lost")

    def _open(self, request: dict[str, object]) -> wire.Channel:
        try:
            channel = open_channel(self._home, self._target, request)
        except wire.Cut as cut:
            raise self.failed(str(cut)) from cut
        channel.out.remember()
        return channel


class TerminalStream:
    """A stream between a session and this terminal. No method blocks, except to start a daemon.

    `end`: the fields of the `x` frame, after `receive` has returned None.
    """

    def __init__(self, home: str, branch: str, verb: str, request: dict[str, object]) -> None:
        """Request the stream. `request` has the terminal's size as `rows` and `cols`. Raises as `open_channel`. If the
        daemon refuses the request, `receive` raises its error.
        """
        self.end: dict[str, object] = {}
        self._size = {"rows": request["rows"], "cols": request["cols"]}
        self._connection = _Connection(home, branch, verb, request)

    def fileno(self) -> int:
        return self._connection.channel.fileno()

    def receive(self) -> bytes | None:
        """New output; b"" if there is none, None after the stream's end. Raises the daemon's error, or Failed if no
        daemon can continue.
        """
        if self.end:
            return None
        output = bytearray(self._connection.notice())
        try:
            if self._connection.channel.fill(wait=False):
                output += self._take()
        except wire.Cut as cut:
            self._connection.open_after(cut, self._request_after(cut))
        return bytes(output) or (None if self.end else b"")

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), wire.MAX_PAYLOAD_BYTES):
            self._connection.channel.out.queue("i", data[start : start + wire.MAX_PAYLOAD_BYTES])

    def flush(self) -> int:
        return self._connection.channel.out.flush()

    def resize(self, rows: int, cols: int) -> None:
        self._size = {"rows": rows, "cols": cols}
        self._connection.channel.out.queue("w", rows.to_bytes(2, "big") + cols.to_bytes(2, "big"))

    def repaint(self) -> None:
        """Do nothing: a command's output cannot be sent again. Full-screen programs repaint after `resize`."""

    def due_s(self) -> float | None:
        return self._connection.due_s()

    def close(self) -> None:
        self._connection.channel.close()

    def _request_after(self, cut: wire.Cut) -> dict[str, object]:
        """The request for the next daemon. Raises Failed if no other daemon can continue."""
        raise self._connection.failed(str(cut))

    def _note(self, facts: dict[str, object]) -> None:
        """Handle the facts of an `n` frame."""

    def _take(self) -> bytes:
        output = bytearray()
        channel = self._connection.channel
        while not self.end and (item := channel.take()) is not None:
            kind, payload = chr(item[0]), item[1]
            if kind == "o":
                output += payload
            elif kind == "n":
                self._note(plainjson.decode_object(bytes(payload)))
            elif kind == "x":
                self.end = plainjson.decode_object(bytes(payload))
        if channel.is_open:
            self._connection.note_open()
        parts = self.end.get("error")
        if isinstance(parts, dict):
            raise from_json(parts)
        return bytes(output)


class Attachment(TerminalStream):
    """The stream of the session's own terminal. The daemon repaints the screen at the start, also after a cut."""

    def __init__(
        self,
        home: str,
        branch: str,
        rows: int,
        cols: int,
        asker: Mapping[str, object] | None = None,
        greeting: Callable[[Mapping[str, object]], bytes] | None = None,
    ) -> None:
        """`asker`: `user` and `default_user` of the request (docs/protocol.md, section 2). `greeting`: makes, from the
        facts about the session, a text that is shown once before the screen.
        """
        self._asker = dict(asker or {})
        self._greeting = greeting
        self._greeted = b""
        super().__init__(home, branch, "attach", {"rows": rows, "cols": cols, **self._asker})

    def repaint(self) -> None:
        """Attach again: the daemon repaints the screen for a new stream."""
        self._connection.reopen({**self._size, **self._asker})

    def _request_after(self, cut: wire.Cut) -> dict[str, object]:
        return {**self._size, **self._asker}

    def _note(self, facts: dict[str, object]) -> None:
        returned = facts.get("returned")
        if isinstance(returned, dict):
            lines = degraded_lines(returned)
            self._greeted += "".join(f"waypoint: {line}\r\n" for line in lines).encode(errors="backslashreplace")
        session = facts.get("session")
        if self._greeting is not None and isinstance(session, dict):
            self._greeted, self._greeting = self._greeted + self._greeting(session), None

    def _take(self) -> bytes:
        output = super()._take()  # the note is the first frame of the stream
        greeted, self._greeted = self._greeted, b""
        return greeted + output


class CommandTerminal(TerminalStream):
    """The stream of an `exec --tty` or a `run -t`. If the daemon dies, only an exec continues with the next daemon."""

    def __init__(self, home: str, branch: str, verb: str, request: dict[str, object]) -> None:
        """`request` has `rows` and `cols`."""
        self._exec_id = ""
        self._received = 0
        self._first = {**request, "id": os.urandom(8).hex()} if verb == "exec" else request
        super().__init__(home, branch, verb, self._first)

    def _note(self, facts: dict[str, object]) -> None:
        if isinstance(facts.get("exec"), str):
            self._exec_id = str(facts["exec"])

    def _take(self) -> bytes:
        output = super()._take()
        self._received += len(output)
        return output

    def _request_after(self, cut: wire.Cut) -> dict[str, object]:
        if "id" not in self._first:
            raise self._connection.lost_run(str(cut))
        if not self._exec_id:  # the next daemon knows from the id whether the command was started
            return {**self._first, **self._size}
        return {"resume": self._exec_id, "offset": self._received, **self._size}
