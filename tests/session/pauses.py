"""Stopping a home's daemon at a step of its transactions (waypoint/capture/steps.py)."""

import contextlib
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import Home, open_home
from tests.waiting import PATIENCE_S
from waypoint.capture.steps import Step

NO_STANDBYS = {"standbys": 0}
"""Settings of a home whose daemon passes the steps of a restore only for commands."""


class Pauses:
    """Stops a daemon at named steps. `env`: variables for the command that starts the daemon; daemons that replace it
    inherit them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.env = {"WAYPOINT_PAUSE_AT": str(folder)}

    @contextlib.contextmanager
    def open_home(self, purpose: str) -> Iterator[Home]:
        """Yield a new home without a daemon. The SDK in this process starts its daemon with `env`; a command that is to
        start it needs `env=pauses.env`.
        """
        with open_home(purpose, settings=NO_STANDBYS) as home, pytest.MonkeyPatch.context() as patch:
            home.must("daemon", "stop")
            for name, value in self.env.items():
                patch.setenv(name, value)
            yield home

    @contextlib.contextmanager
    def armed(self, *steps: Step) -> Iterator["Armed"]:
        """In the `with` block, the daemon stops once at each of `steps`."""
        armed = Armed(self._folder)
        try:
            for step in steps:
                os.mkfifo(self._folder / f"go-{step}")
                armed.arm(step)
            yield armed
        finally:
            armed.close()
            for step in steps:
                (self._folder / step).unlink(missing_ok=True)
                (self._folder / f"go-{step}").unlink()


class Armed:
    def __init__(self, folder: Path) -> None:
        self._waiting: dict[int, Step] = {}
        self._opened: list[int] = []
        self._folder = folder
        self._reached: Step | None = None

    def arm(self, step: Step) -> None:
        """Make the daemon stop at `step` again. If it stands at this step now, call this before `go_on`."""
        os.mkfifo(self._folder / step)
        self._opened.append(os.open(self._folder / step, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        self._waiting[self._opened[-1]] = step

    def close(self) -> None:
        for fd in self._opened:
            os.close(fd)

    def wait(self, or_end_of: int = -1) -> Step | None:
        """Wait until the daemon stops at a step, and return the step; None if the process of the pidfd `or_end_of`
        ends first.
        """
        poll = select.poll()
        for fd in (*self._waiting, *([or_end_of] if or_end_of >= 0 else [])):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, events in poll.poll(1000 * PATIENCE_S) if events & select.POLLIN}
        assert ready, f"{', '.join(self._waiting.values())} was not reached"
        reached = sorted(ready & self._waiting.keys())
        self._reached = self._waiting.pop(reached[0]) if reached else None
        return self._reached

    def go_on(self) -> None:
        """Let the daemon continue from the step that `wait` returned. Raises OSError (ENXIO) if the daemon is dead."""
        os.close(os.open(self._folder / f"go-{self._reached}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
