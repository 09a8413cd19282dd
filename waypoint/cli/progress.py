"""How far something is that takes long: one line on stderr, if that is a terminal, which goes when it is done."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from waypoint.cli.output import write_all
from waypoint.cli.tables import size
from waypoint.client.following import iter_events
from waypoint.model.errors import WaypointError

_EVERY_S = 0.1
_WIDTH = 24
_GONE = b"\r\x1b[K"


class ProgressBar:
    """Use `shown`. `total`: how many bytes there are in all; None: not known."""

    def __init__(self, what: str, total: int | None) -> None:
        self.total = total
        self._what = what
        self._done = 0
        self._drawn_at = float("-inf")
        self._is_terminal = os.isatty(2)

    def add(self, count: int) -> None:
        """So many bytes more are done."""
        self.put(self._done + count)

    def put(self, done: int) -> None:
        """So many bytes are done in all."""
        self._done = done
        now, is_all = time.monotonic(), self.total is not None and done >= self.total
        if self._is_terminal and (is_all or now - self._drawn_at >= _EVERY_S):
            self._drawn_at = now
            _write(_GONE + self._line().encode())

    def remove(self) -> None:
        if self._drawn_at > 0:
            _write(_GONE)

    def _line(self) -> str:
        if not self.total:
            return f"{self._what}  {size(self._done)}"
        done = min(self._done, self.total)
        filled = _WIDTH * done // self.total
        return f"{self._what}  [{'#' * filled}{'.' * (_WIDTH - filled)}] {size(done)} of {size(self.total)}"


def _write(text: bytes) -> None:
    with contextlib.suppress(OSError):  # the terminal has gone, and nobody looks
        write_all(2, memoryview(text))


@contextlib.contextmanager
def shown(what: str, total: int | None = None) -> Iterator[ProgressBar]:
    """A bar for the `with` block; it is not on the terminal any more when the block has ended. `what`: in words."""
    bar = ProgressBar(what, total)
    try:
        yield bar
    finally:
        bar.remove()


@contextlib.contextmanager
def storing_shown(home: str) -> Iterator[None]:
    """Show during the `with` block how far the store of `home` (its real path) is with what it takes in."""
    if not os.isatty(2):
        yield
        return
    over, drawing = threading.Event(), threading.Lock()

    def draw(done: int, total: int | None) -> None:
        with drawing:
            if not over.is_set():
                bar.total = total
                bar.put(done)

    with shown("into the store") as bar:
        threading.Thread(target=_follow, args=(home, draw), daemon=True).start()
        try:
            yield
        finally:
            with drawing:
                over.set()


def _follow(home: str, draw: Callable[[int, int | None], None]) -> None:
    """Tell of the progress of jobs of the store, until the process ends."""
    newest = 0
    with contextlib.suppress(WaypointError, OSError):  # who has asked for the work is told of it by its own answer
        for event in iter_events(home, follow=True, after=None):
            match event:
                case {"kind": "begin", "seq": int(seq)}:
                    newest = seq  # the events that are kept come first
                case {"seq": int(seq), "change": "progress", "job": {"kind": "store", "progress": dict(progress)}}:
                    total = progress["bytes_total"]
                    if seq > newest:
                        draw(int(progress["bytes"]), total if isinstance(total, int) else None)
                case _:
                    pass
