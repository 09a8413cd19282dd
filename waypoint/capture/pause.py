"""Freezing a session for a capture, so that its files, memory and terminal are captured at the same moment."""

import contextlib
import time

from waypoint.capture.steps import Step, reach
from waypoint.linux.tasks import cgroups, pauses
from waypoint.processes import calls
from waypoint.processes.freeze import freeze_for_dump


class Pause:
    """Freezes one session, once for each try at a capture. `ms`: the total length of the finished pauses. `is_dumped`:
    CRIU has dumped the session in this pause, so its interrupted system calls go on (calls.py).
    """

    def __init__(self, cgroup: str) -> None:
        self._cgroup = cgroup
        self._announced = contextlib.ExitStack()
        self._began = 0.0
        self._is_frozen = False
        self.ms = 0.0
        self.is_dumped = False

    def announce(self) -> None:
        """Announce a pause some milliseconds before `begin`, so that the daemon makes no long lists meanwhile
        (pauses.py). The caller must call `end` later.
        """
        self._announced.enter_context(pauses.announced())

    def begin(self, *, for_dump: bool) -> None:
        """Freeze the session; with `for_dump` at a moment when CRIU can stop all its tasks. The caller must call `end`
        later, also after an exception.

        Raises CannotCapture if there is no such moment, OSError if a task does not stop in time.
        """
        self._is_frozen, self.is_dumped = True, False
        if for_dump:
            self._began = freeze_for_dump(self._cgroup)
        else:
            began = time.monotonic()
            cgroups.freeze(self._cgroup)
            self._began = began
        reach(Step.FROZEN)

    def stop_clock(self) -> None:
        """Stop measuring the pause. Call it without `end` for a session that stays frozen and is then ended.
        Idempotent.
        """
        if self._began:
            self.ms += max(0.001, 1000 * (time.monotonic() - self._began))
            self._began = 0.0
            self._announced.close()
            reach(Step.THAWED)

    def end(self) -> None:
        """Thaw the session if this pause has frozen it. Idempotent. Raises OSError."""
        try:
            if self._is_frozen:
                self._is_frozen = False
                if not self.is_dumped:
                    calls.resume(self._cgroup)
                cgroups.thaw(self._cgroup)
        finally:
            self.stop_clock()
            self._announced.close()
