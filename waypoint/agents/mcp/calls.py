"""One call of a tool: what the tool may use, and how the call is cancelled."""

import contextlib
import threading
from collections.abc import Iterator

from waypoint.agents.mcp.outputs import Outputs, Recorder
from waypoint.agents.mcp.results import Page
from waypoint.client import Client
from waypoint.client.running import Running
from waypoint.model.errors import WaypointError


class Cancelled(Exception):
    """The client has cancelled the call or is gone."""


class Call:
    """Made for each call. The tool runs in a thread of its own; `cancel` is called in another one."""

    def __init__(self, home: str, outputs: Outputs) -> None:
        self.home = home
        self.client = Client(home)
        self._outputs = outputs
        self._recorders: list[Recorder] = []
        self._lock = threading.Lock()
        self._running: set[Running] = set()
        self._is_cancelled = False

    def check(self) -> None:
        """Raise Cancelled if the call was cancelled."""
        if self._is_cancelled:
            raise Cancelled

    @contextlib.contextmanager
    def follow(self, branch: str, verb: str, request: dict[str, object]) -> Iterator[Running]:
        """A command that ends when the call is cancelled. Raises Cancelled in place of the command's end then."""
        self.check()
        with Running(self.home, branch, verb, request) as running:
            with self._lock:
                self._running.add(running)
                late = self._is_cancelled
            if late:
                _end(running)
            try:
                yield running
            except (TimeoutError, WaypointError):
                self.check()
                raise
            finally:
                with self._lock:
                    self._running.discard(running)
        self.check()

    def record(self, max_bytes: int) -> Recorder:
        """A receiver of output, which also shows the progress of the call."""
        self._recorders.append(Recorder(self._outputs, max_bytes))
        return self._recorders[-1]

    def read_on(self, cursor: str, max_bytes: int) -> Page:
        return self._outputs.page(cursor, max_bytes)

    def progress(self) -> tuple[int, str]:
        """The number of bytes of output so far, and a line of it."""
        recorders = list(self._recorders)
        lines = [one.last_line for one in recorders]
        return sum(one.total for one in recorders), next(filter(None, reversed(lines)), "")

    def cancel(self) -> None:
        """End the commands of the call. Returns at once."""
        with self._lock:
            self._is_cancelled = True
            running = list(self._running)
        for one in running:
            _end(one)


def _end(running: Running) -> None:
    threading.Thread(target=running.end, daemon=True).start()
