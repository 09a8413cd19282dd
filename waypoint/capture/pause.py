"""The time for which a session stands still, so that its files, memory and terminal are of one moment."""

import time
from dataclasses import dataclass
from typing import Protocol

from waypoint.capture.steps import Step, reach
from waypoint.linux import cgroups
from waypoint.processes.freeze import freeze_for_dump
from waypoint.upper.contract import Pool


class Subject(Protocol):
    """A live session, as a capture sees it. Its calls may be made in any thread."""

    @property
    def tree(self) -> str:
        """Its upper tree in the pool."""
        ...

    @property
    def cgroup(self) -> str: ...

    def stand_still(self) -> None:
        """It is frozen: take what its terminal has printed, take nothing more and type nothing."""
        ...

    def copy_memory(self) -> None:
        """It is frozen, and dumped if it is to be: have copies of its terminal and of the files in its memory."""
        ...

    def go_on(self) -> None:
        """It runs again."""
        ...


@dataclass(slots=True)
class Pause:
    """Used once. `began`, `ended`: of time.monotonic(); 0 until then."""

    subject: Subject
    pool: Pool
    sealed_name: str
    began: float = 0.0
    ended: float = 0.0

    def begin(self, *, for_dump: bool) -> None:
        """Freeze the session, take its terminal.

        `for_dump`: at a moment at which CRIU can stop its tasks; raises CannotCapture, and the session runs, if there
        is none. Whatever else this raises, `end` is to be called.
        """
        try:
            self.began = freeze_for_dump(self.subject.cgroup) if for_dump else _freeze(self.subject.cgroup)
        except OSError:  # a task that does not stop in time, say
            cgroups.thaw(self.subject.cgroup)
            raise
        reach(Step.FROZEN)
        self.subject.stand_still()
        reach(Step.DRAINED)

    def snapshot(self) -> None:
        """Copy its files, but for those in memory."""
        self.pool.snapshot(self.subject.tree, self.sealed_name, sealed=True)

    def finish(self) -> None:
        """With the snapshot there: copy what is in memory alone."""
        self.subject.copy_memory()
        reach(Step.SEALED)

    def end(self, *, hold: bool = False) -> None:
        """Let it run, nothing if it does; with `hold` it stays frozen, for somebody else to end."""
        if self.began and not self.ended:
            if not hold:
                cgroups.thaw(self.subject.cgroup)
            self.ended = time.monotonic()
            if not hold:
                self.subject.go_on()
            reach(Step.THAWED)

    @property
    def ms(self) -> float:
        return round(1000 * (self.ended - self.began), 3)


def _freeze(cgroup: str) -> float:
    began = time.monotonic()
    cgroups.freeze(cgroup)
    return began
