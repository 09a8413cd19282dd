"""The time for which a session stands still, so that its files, memory and terminal are of one moment."""

import contextlib
import threading
import time
from collections.abc import Iterator

from waypoint.capture.steps import Step, reach
from waypoint.linux.tasks import cgroups
from waypoint.processes.freeze import freeze_for_dump

# How long `wait_for_pauses` waits for a pause at most. Longer pauses are those of sessions with much memory.
WAIT_S = 0.05


class _Pauses:
    """The pauses of all sessions of this process: threads share the interpreter, whatever session they work for."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = 0
        self.latest = 0.0  # when the latest one began, by time.monotonic


_pauses = _Pauses()


@contextlib.contextmanager
def announced() -> Iterator[None]:
    """Mark the `with` block as a time in which a session is frozen or about to be. Such blocks may overlap."""
    with _pauses.changed:
        _pauses.count += 1
        _pauses.latest = time.monotonic()
    try:
        yield
    finally:
        with _pauses.changed:
            _pauses.count -= 1
            _pauses.changed.notify_all()


def wait_for_pauses() -> None:
    """Wait until no session is frozen or about to be, or until the latest pause has lasted WAIT_S. Blocks.

    For threads that make long lists. Python runs one thread at a time: while another thread computes, each of the some
    forty steps of a capture waits up to 0.5 ms (daemon/lifetime.py) for the interpreter.
    """
    if _pauses.count:
        with _pauses.changed:
            left_s = _pauses.latest + WAIT_S - time.monotonic()
            if left_s > 0:
                _pauses.changed.wait_for(lambda: not _pauses.count, left_s)


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
        """Make `wait_for_pauses` wait from now on, so that no page of a long list is being made when the pause begins.
        To be called some milliseconds before `begin`. Call `end` in any case.
        """
        self._announced.enter_context(announced())

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
