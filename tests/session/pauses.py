"""Stopping a home's daemon at a step of its transactions (waypoint/capture/steps.py)."""

import contextlib
import os
import select
from collections.abc import Iterator
from pathlib import Path

from waypoint.capture.steps import Step

DEADLINE_S = 20.0


class Pauses:
    """`env` is for the command that starts the daemon; all daemons after that one have it, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._go = folder / "go"
        os.mkfifo(self._go)
        self.env = {"WAYPOINT_PAUSE_AT": str(folder)}

    @contextlib.contextmanager
    def armed(self, *steps: Step) -> Iterator["Armed"]:
        """The next time that a transaction comes to one of `steps`, it stops there, once."""
        descriptors: dict[int, Step] = {}
        try:
            for step in steps:
                path = self._folder / step
                os.mkfifo(path)
                descriptors[os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)] = step
            yield Armed(descriptors, self._go)
        finally:
            for fd, step in descriptors.items():
                (self._folder / step).unlink(missing_ok=True)
                os.close(fd)


class Armed:
    def __init__(self, descriptors: dict[int, Step], go: Path) -> None:
        self._waiting = descriptors.copy()
        self._go = go

    def wait(self, or_end_of: int = -1) -> Step | None:
        """The step at which it has stopped; None if the process with pidfd `or_end_of` ended before."""
        poll = select.poll()
        for fd in (*self._waiting, *([or_end_of] if or_end_of >= 0 else [])):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, events in poll.poll(1000 * DEADLINE_S) if events & select.POLLIN}
        assert ready, f"{', '.join(self._waiting.values())} was not reached"
        reached = sorted(ready & self._waiting.keys())
        return self._waiting.pop(reached[0]) if reached else None

    def go_on(self) -> None:
        """Let it go on. The daemon must live."""
        self._go.write_text("")
