"""Stages of the running request, for the client that waits for it (docs/protocol.md, section 1).

The stages of a request are a context variable, which tasks and threads of the request inherit. Without a client that
wants to know, a stage costs a microsecond.
"""

import contextlib
import contextvars
from collections.abc import Iterator

from waypoint.model.stages import Stage


class OpenStage:
    """One stage that has begun. Its thread sets `done` and `total`; any thread may read them."""

    __slots__ = ("code", "done", "subject", "total", "unit")

    def __init__(self, code: Stage, subject: str, total: int | None, unit: str) -> None:
        self.code, self.subject, self.unit = code, subject, unit
        self.done, self.total = 0, total

    def report(self, done: int, total: int | None = None) -> None:
        """Set the amount that is done; with `total` also the whole amount."""
        self.done = done
        if total is not None:
            self.total = total

    def step(self) -> None:
        """One item more is done."""
        self.done += 1


class Stages:
    """The stages of one request. Tasks and threads of the request may be in several at a time."""

    def __init__(self) -> None:
        self._open: list[OpenStage] = []

    def current(self) -> OpenStage | None:
        """The stage that has begun last and has not ended."""
        begun = self._open
        return begun[-1] if begun else None

    def begin(self, one: OpenStage) -> None:
        self._open = [*self._open, one]  # readers in other threads never see a list that changes

    def end(self, one: OpenStage) -> None:
        self._open = [other for other in self._open if other is not one]


_STAGES: contextvars.ContextVar[Stages | None] = contextvars.ContextVar("stages", default=None)


@contextlib.contextmanager
def noted(stages: Stages) -> Iterator[None]:
    """Collect the stages of the `with` block, and of all tasks and threads that it begins."""
    token = _STAGES.set(stages)
    try:
        yield
    finally:
        _STAGES.reset(token)


@contextlib.contextmanager
def stage(code: Stage, subject: str = "", *, total: int | None = None, unit: str = "items") -> Iterator[OpenStage]:
    """Begin a stage that ends with the `with` block. `unit`: of the amounts, `bytes` or `items`."""
    one, stages = OpenStage(code, subject, total, unit), _STAGES.get()
    if stages is None:
        yield one
        return
    stages.begin(one)
    try:
        yield one
    finally:
        stages.end(one)
