"""The connection to the client on stdin and stdout. Loads nothing slow: it is open while the MCP package is loaded."""

import contextlib
import os
import queue
import threading

from waypoint.agents.mcp import opening

_MOST_WAITING = 64


class Wire:
    """Reads lines in a thread of its own from the start on, and answers the first one, if it is `initialize`: to load
    the MCP package takes half a second.

    Programs that this process starts, and what it prints, do not reach the client: descriptor 0 becomes /dev/null, and
    1 becomes stderr.
    """

    def __init__(self) -> None:
        self._source, self._sink = os.dup(0), os.dup(1)  # not inherited by programs
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._lines: queue.Queue[bytes] = queue.Queue(_MOST_WAITING)
        self._lock = threading.Lock()
        self.answered: int | str | None = None
        """The id of the request that this object has answered."""
        threading.Thread(target=self._read, daemon=True).start()

    def take(self) -> bytes:
        """Wait for the next line; b"" at the end, and from then on."""
        line = self._lines.get()
        if not line:
            self._lines.put(b"")
        return line

    def write(self, line: bytes) -> None:
        """Send a line. Raises OSError if the client has gone."""
        view = memoryview(line)
        with self._lock:
            while view:
                view = view[os.write(self._sink, view) :]

    def _read(self) -> None:
        is_first = True
        with open(self._source, "rb") as source, contextlib.suppress(OSError):  # an error ends the input
            for line in source:
                if line.isspace():
                    continue
                if is_first:
                    self._open(line)
                is_first = False
                self._lines.put(line)
        self._lines.put(b"")

    def _open(self, line: bytes) -> None:
        found = opening.answer(line)
        if found is not None:
            self.answered, answer = found
            with contextlib.suppress(OSError):  # the client has gone: the end of its input follows
                self.write(answer + b"\n")
