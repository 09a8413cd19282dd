"""Checks a home and one of its sessions repeatedly while a test kills parts of it."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.homes import Home
from tests.session import ledger
from waypoint.client import Client
from waypoint.model.errors import WaypointError

LOOK_S = 0.05
_FINE_S = 0.005
COUNT = "/srv/count"
COUNTER = f"""
import os, time
count, file = 0, os.open("{COUNT}", os.O_RDWR | os.O_CREAT, 0o644)
while True:
    count += 1
    os.pwrite(file, b"%020d" % count, 0)
    time.sleep(0.005)
"""
"""A program for the session: it counts in its memory and writes the count to the file COUNT."""


class Probe:
    """In the `with` block, two threads check the home. One sends a request every LOOK_S, as any client does (which
    starts a daemon if none listens). The other checks that COUNTER counts and the session is not frozen.

    Moments are values of time.monotonic().
    """

    def __init__(self, home: Home, session: str, pid: int) -> None:
        """`session`: the session's id; `pid`: the pid on the host of the session's pid 1."""
        self._client = Client(home.path)
        self._group = ledger.group_of(home) / session
        self._count = Path(f"/proc/{pid}/root{COUNT}")
        self._ends = threading.Event()
        self._loops: list[tuple[Callable[[], bool], float]] = [(self._runs, _FINE_S), (self._answers, LOOK_S)]
        self._threads = [threading.Thread(target=self._look, args=(look, every)) for look, every in self._loops]
        self._last = -1
        self._good: dict[Callable[[], bool], list[float]] = {look: [] for look, _ in self._loops}

    def __enter__(self) -> "Probe":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def is_back(self, moment: float) -> bool:
        """Return whether each check has succeeded after `moment`."""
        return all(good and good[-1] > moment for good in self._good.values())

    def away_s(self, first: float, last: float) -> float:
        """Return the longest time without a successful check among those that ended after the moment `first`. Time
        before the moment `last` does not count.
        """
        longest = 0.0
        for good in self._good.values():
            moments = [first, *(at for at in good if at > first)]
            longest = max(longest, *(end - max(begin, last) for begin, end in itertools.pairwise(moments)))
        return longest

    def _look(self, look: Callable[[], bool], every: float) -> None:
        while not self._ends.wait(every):
            begin = time.monotonic()
            if look():
                self._good[look].append(begin if look == self._runs else time.monotonic())

    def _answers(self) -> bool:
        with contextlib.suppress(WaypointError):
            self._client.status()
            return True
        return False

    def _runs(self) -> bool:
        before, self._last = self._last, int(self._count.read_bytes() or b"0")
        return self._last > before and "frozen 0" in (self._group / "cgroup.events").read_text()
