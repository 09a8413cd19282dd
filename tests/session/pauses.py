"""Stopping a home's daemon at a step of its transactions (waypoint/capture/steps.py)."""

import contextlib
import os
import select
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

from tests.homes import Home, open_home
from tests.waiting import PATIENCE_S


class Pauses:
    """`env` is for the command that starts the daemon; all daemons after that one have it, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.env = {"WAYPOINT_PAUSE_AT": str(folder)}

    @contextlib.contextmanager
    def open_home(self, purpose: str) -> Iterator[Home]:
        """A new home. Every command of it, the SDK too, and so each daemon that one of them starts, has `env`."""
        with open_home(purpose) as home, pytest.MonkeyPatch.context() as patch:
            home.must("daemon", "stop")
            for name, value in self.env.items():
                patch.setenv(name, value)
            yield home

    @contextlib.contextmanager
    def armed(self, *steps: StrEnum) -> Iterator["Armed"]:
        """The next time that a transaction comes to one of `steps`, it stops there, once."""
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


def home_with(pauses: Pauses) -> Iterator[Home]:
    """For a fixture `home`: one whose daemon can be stopped at a step."""
    with pauses.open_home("pauses") as made:
        yield made


class Armed:
    def __init__(self, folder: Path) -> None:
        self._waiting: dict[int, StrEnum] = {}
        self._opened: list[int] = []
        self._folder = folder
        self._reached: StrEnum | None = None
        self.pid = 0
        """Of the process that stands at the step that the last `wait` has seen."""

    def arm(self, step: StrEnum) -> None:
        """Stop at `step`; once more, if the last `wait` has seen it, to be called before `go_on`."""
        os.mkfifo(self._folder / step)
        self._opened.append(os.open(self._folder / step, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        self._waiting[self._opened[-1]] = step

    def close(self) -> None:
        for fd in self._opened:
            os.close(fd)

    def wait(self, or_end_of: int = -1) -> StrEnum | None:
        """The step at which it has stopped; None if the process with pidfd `or_end_of` ended before."""
        poll = select.poll()
        for fd in (*self._waiting, *([or_end_of] if or_end_of >= 0 else [])):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, events in poll.poll(1000 * PATIENCE_S) if events & select.POLLIN}
        assert ready, f"{', '.join(self._waiting.values())} was not reached"
        reached = sorted(ready & self._waiting.keys())
        self._reached = self._waiting.pop(reached[0]) if reached else None
        self.pid = int(os.read(reached[0], 16)) if reached else 0
        return self._reached

    def go_on(self, error: int = 0) -> None:
        """Let the transaction that the last `wait` has seen go on. `error`: one that it meets at this step, errno(3).
        Raises OSError (ENXIO) if the daemon is dead.
        """
        go = os.open(self._folder / f"go-{self._reached}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if error:
            os.write(go, str(error).encode())
        os.close(go)
