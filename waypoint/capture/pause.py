"""The pauses of a session during a capture, in which its files, memory and terminal are of one moment."""

import contextlib
import time

from waypoint.capture.steps import Step, reach
from waypoint.linux.tasks import cgroups, pauses
from waypoint.processes.freeze import freeze_for_dump


class Pause:
    """The pauses of one session, one for each try at a capture. `ms`: the length of those that have ended, together."""

    def __init__(self, cgroup: str) -> None:
        self._cgroup = cgroup
        self._announced = contextlib.ExitStack()
        self._began = 0.0
        self._is_frozen = False
        self.ms = 0.0

    def announce(self) -> None:
        """Stop the making of long lists (pauses.py) some milliseconds before `begin`. Requires a call of `end`."""
        self._announced.enter_context(pauses.announced())

    def begin(self, *, for_dump: bool) -> None:
        """Freeze the session; with `for_dump` at a moment when CRIU can stop all its tasks. Requires a call of `end`.

        Raises CannotCapture if there is no such moment, OSError if a task does not stop in time.
        """
        self._is_frozen = True
        if for_dump:
            self._began = freeze_for_dump(self._cgroup)
        else:
            began = time.monotonic()
            cgroups.freeze(self._cgroup)
            self._began = began
        reach(Step.FROZEN)

    def stop_clock(self) -> None:
        """End the measured pause, for example of a session that stays frozen and is then ended. Idempotent."""
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
                cgroups.thaw(self._cgroup)
        finally:
            self.stop_clock()
            self._announced.close()
