"""The time for which a session stands still, so that its files, memory and terminal are of one moment."""

import contextlib
import threading
import time
from collections.abc import Collection, Iterator

from waypoint.capture.steps import Step, reach
from waypoint.linux.niceness import Gate
from waypoint.linux.tasks import cgroups
from waypoint.processes.freeze import freeze, freeze_for_dump

# The longest time for which `Quiet.wait` blocks. It is bounded so that sessions that are captured one after another
# without end do not stop the daemon's other work.
PATIENCE_S = 0.05
# A pause that lasts longer is one of much memory, or one of many that follow each other: nobody waits for its end.
LONG_S = 0.1


class Quiet:
    """Keeps the daemon's long computations out of the pauses. Python runs one thread at a time: while a thread decodes
    a long history, each step of a capture waits for the interpreter (0.5 ms a step, see daemon/lifetime.py).

    `gate`: of programs that are to rest meanwhile.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pauses: dict[object, float] = {}  # when each has begun
        self.gate: Gate | None = None

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Mark the `with` block as a time in which a session stands still, or is about to. Any number of pauses may
        overlap.
        """
        pause = object()
        with self._changed:
            if not self._pauses and self.gate is not None:
                self.gate.shut()
            self._pauses[pause] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._pauses[pause]
                if not self._pauses and self.gate is not None:
                    self.gate.open()
                self._changed.notify_all()

    def stands_still(self) -> bool:
        """Say whether a session stands still at this moment, or is about to. The event loop may call it."""
        return bool(self._pauses)

    def wait(self) -> None:
        """Return when no session stands still nor is about to, but for those that have for LONG_S, or after PATIENCE_S
        seconds. A thread with a long computation calls this about once a millisecond. The event loop must not call it.
        """
        if self._pauses:
            with self._changed:
                self._changed.wait_for(self._all_are_long, PATIENCE_S)

    def _all_are_long(self) -> bool:
        recent = time.monotonic() - LONG_S
        return all(began < recent for began in self._pauses.values())


class Pause:
    """The pause of one session; each object is used once. `ms`: the length of the pause in milliseconds, 0 before the
    end of the pause.
    """

    def __init__(self, cgroup: str, quiet: Quiet, quiet_until: contextlib.ExitStack | None = None) -> None:
        """`quiet_until`: a stack; the daemon's long computations are kept back until it is closed, not only until the
        end of the pause.
        """
        self._cgroup = cgroup
        self._quiet = contextlib.ExitStack()
        self._quiet_until = self._quiet if quiet_until is None else quiet_until
        self._enter_quiet = quiet.pause
        self._began = 0.0
        self._is_frozen = False
        self.ms = 0.0

    def announce(self) -> None:
        """Keep the daemon's long computations back from now on, so that none is under way when the pause begins. To be
        called some milliseconds before `begin`. Call `end` in any case.
        """
        self._quiet_until.enter_context(self._enter_quiet())

    def begin(self, *, for_dump: bool, apart: Collection[int] = ()) -> None:
        """Freeze the session. With `for_dump`, freeze it at a moment at which CRIU can stop all its tasks. `apart`: as
        of `freeze_for_dump`.

        Raises CannotCapture if no such moment is found, Failed if a task cannot be stopped, OSError if one does not
        stop in time. Call `end` in any case.
        """
        self._is_frozen = True
        self._began = freeze_for_dump(self._cgroup, apart) if for_dump else freeze(self._cgroup)
        reach(Step.FROZEN)

    def stop_clock(self) -> None:
        """Set `ms`: what comes from now on is no part of the pause, for example a session that is held and then ended.
        Does nothing the second time.
        """
        if self._began and not self.ms:
            self.ms = max(0.001, round(1000 * (time.monotonic() - self._began), 3))
            self._quiet.close()
            reach(Step.THAWED)

    def end(self) -> None:
        """Thaw the session, if it is frozen because of this pause. May be called more than once. Raises OSError."""
        try:
            if self._is_frozen:
                self._is_frozen = False
                cgroups.thaw(self._cgroup)
        finally:
            self.stop_clock()
            self._quiet.close()
