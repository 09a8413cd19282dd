"""Looks at a home and one of its sessions from outside, again and again, while a test kills parts of it."""

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
"""A program for the inside of the session: counts in its memory, and shows how far it is."""


class Probe:
    """From `with` on, two threads look at the home: one asks the daemon every LOOK_S, as any client does (which starts
    a daemon if none listens), the other reads the count and the frozen state of a session.

    Moments are those of time.monotonic().
    """

    def __init__(self, home: Home, session: str, pid: int) -> None:
        """`session`: the session's id; `pid`: that of its pid 1 as the host sees it."""
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
        """Whether each look was good after `moment`."""
        return all(good and good[-1] > moment for good in self._good.values())

    def away_s(self, first: float, last: float) -> float:
        """The longest time without a good look that ended after the moment `first`; what was before the moment `last`
        does not count.
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
