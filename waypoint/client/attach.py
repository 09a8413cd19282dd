"""An attached terminal: the client's end of an `attach` stream, which outlives the daemon it began with.

Has the shape of shellwrap.proxy.Remote. When the stream is cut it attaches again; the next daemon sends what repaints
the screen. Input that the old daemon had taken and not passed on is lost then, as on any line that breaks.
"""

import time

from waypoint.client import plainjson, wire
from waypoint.client.link import open_channel, quote_branch
from waypoint.model.errors import Failed, from_json

NOTICE_AFTER_S = 1.0
NOTICE = b"\r\n[waypoint: waiting for the daemon]\r\n"
# So many daemons in a row may take the request and die before they have answered it.
MAX_FRUITLESS = 5


class Attachment:
    """One attached terminal of the branch's session. No method waits, but for starting a daemon where none is left."""

    def __init__(self, home: str, branch: str, rows: int, cols: int) -> None:
        """Ask for the stream. A refusal is raised by `receive`. Raises as `open_channel`."""
        self._home = home
        self._branch = branch
        self._size = (rows, cols)
        self._fruitless = 0
        self._cut_at: float | None = None  # since when we wait for a daemon, while it has not been said
        self.end: dict[str, object] = {}  # the fields of the `x` frame, once there was one
        self._channel = self._open()

    def fileno(self) -> int:
        return self._channel.fileno()

    def receive(self) -> bytes | None:
        """Output that has arrived, b"" if there is none, None after the end.

        Raises the daemon's error, also when it refuses to attach again, and Failed if daemon after daemon dies over it.
        """
        if self.end:
            return None
        output = bytearray(self._notice())
        try:
            if self._channel.fill(wait=False):
                output += self._take()
        except wire.Cut as cut:
            self._attach_again(cut)
        return bytes(output) or (None if self.end else b"")

    def send(self, data: bytes) -> None:
        for start in range(0, len(data), wire.MAX_PAYLOAD_BYTES):
            self._channel.queue("i", data[start : start + wire.MAX_PAYLOAD_BYTES])

    def flush(self) -> None:
        self._channel.flush()

    def queued_bytes(self) -> int:
        return self._channel.queued_bytes()

    def resize(self, rows: int, cols: int) -> None:
        self._size = (rows, cols)
        self._channel.queue("w", rows.to_bytes(2, "big") + cols.to_bytes(2, "big"))

    def repaint(self) -> None:
        """Attach once more, since that is what the daemon sends the screen for."""
        self.close()
        self._channel = self._open()

    def due_s(self) -> float | None:
        return None if self._cut_at is None else self._cut_at + NOTICE_AFTER_S - time.monotonic()

    def close(self) -> None:
        """Detach."""
        self._channel.close()

    def _open(self) -> wire.Channel:
        rows, cols = self._size
        target = f"/v1/sessions/{quote_branch(self._branch)}/attach"
        attempt = 1
        while True:
            try:
                return open_channel(self._home, target, {"rows": rows, "cols": cols})
            except wire.Cut as cut:
                if attempt == MAX_FRUITLESS:
                    raise self._failed(cut) from cut
                attempt += 1

    def _take(self) -> bytes:
        output = bytearray()
        while not self.end and (item := self._channel.take()) is not None:
            kind, payload = chr(item[0]), item[1]
            if kind == "o":
                output += payload
            elif kind == "x":
                self._finish(bytes(payload))
        if self._channel.is_open:
            self._fruitless = 0
            self._cut_at = None
        return bytes(output)

    def _finish(self, payload: bytes) -> None:
        facts = plainjson.decode_object(payload)
        parts = facts.get("error")
        if isinstance(parts, dict):
            raise from_json(parts)
        self.end = facts

    def _attach_again(self, cut: wire.Cut) -> None:
        self._fruitless += 1
        if self._fruitless > MAX_FRUITLESS:
            raise self._failed(cut)
        if self._cut_at is None and self._fruitless == 1:
            self._cut_at = time.monotonic()
        self.close()
        self._channel = self._open()

    def _notice(self) -> bytes:
        remaining_s = self.due_s()
        if remaining_s is None or remaining_s > 0:
            return b""
        self._cut_at = None
        return NOTICE

    def _failed(self, cut: wire.Cut) -> Failed:
        said = f"{MAX_FRUITLESS} daemons in a row went away ({cut})"
        return Failed("stay attached to", f"branch {self._branch}", said, f"see {self._home}/daemon.log")
