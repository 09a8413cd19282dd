"""The time for which a session stands still, so that its files, memory and terminal are of one moment."""

import contextlib
import time

from waypoint.capture.steps import Step, reach
from waypoint.linux.tasks import cgroups, pauses
from waypoint.processes.freeze import freeze_for_dump


class Pause:
    """The pause of one session; each object is used once. `ms`: the length of the pause in milliseconds, 0 before the
    end of the pause.
    """

    def __init__(self, cgroup: str) -> None:
        self._cgroup = cgroup
        self._announced = contextlib.ExitStack()
        self._began = 0.0
        self._is_frozen = False
        self.ms = 0.0

    def announce(self) -> None:
        """Let no page of a long list be made from now on (pauses.py). To be called some milliseconds before `begin`.
        Call `end` in any case.
        """
        self._announced.enter_context(pauses.announced())

    def begin(self, *, for_dump: bool) -> None:
        """Freeze the session. With `for_dump`, freeze it at a moment at which CRIU can stop all its tasks.

        Raises CannotCapture if no such moment is found, OSError if a task does not stop in time. Call `end` in any
        case.
        """
        self._is_frozen = True
        self._began = freeze_for_dump(self._cgroup) if for_dump else self._freeze()
        reach(Step.FROZEN)

    def stop_clock(self) -> None:
        """Set `ms`: what comes from now on is no part of the pause, for example a session that is held and then ended.
        Does nothing the second time.
        """
        if self._began and not self.ms:
            self.ms = max(0.001, round(1000 * (time.monotonic() - self._began), 3))
            self._announced.close()
            reach(Step.THAWED)

    def end(self) -> None:
        """Thaw the session, if it is frozen because of this pause. May be called more than once. Raises OSError."""
        try:
            if self._is_frozen:
                self._is_frozen = False
                cgroups.thaw(self._cgroup)
        finally:
            self.stop_clock()
            self._announced.close()

    def _freeze(self) -> float:
        began = time.monotonic()
        cgroups.freeze(self._cgroup)
        return began
