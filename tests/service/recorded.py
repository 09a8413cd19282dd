"""A home for tests of undo. Names, locks and the operation log are real; sessions are only rows in names.db."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.records.test_names_store import begin, begin_and_end, capture_of, name_it, row_of
from waypoint.capture.layers.layer import CaptureOptions
from waypoint.model.conditions import degradation
from waypoint.model.facts import OperationFacts, UndoFacts
from waypoint.model.records import Capture, LiveRow, Ref
from waypoint.model.requests import OperationsQuery, RemoveRequest, RenameRequest, UndoRequest
from waypoint.records.callers import for_nobody
from waypoint.records.names import Names
from waypoint.service import history as service_history
from waypoint.session import undo as session_undo
from waypoint.session.checkpoint import Checkpointed, LossConsent
from waypoint.session.restore import Restored
from waypoint.session.turns import Turns


class RecordedSessions:
    """A fake of the registry, `checkpoint` and `restore` that changes only names.db.

    `gate`: each call of `checkpoint` or `restore` waits for this event. `afterwards`: is called after each, before the
    undo continues.
    """

    def __init__(self, names: Names) -> None:
        self.resources = SimpleNamespace(names=names, captures=None, trusted=None)
        self._names = names
        turns = Turns()
        self.turn, self.share_turns = turns.take, turns.share
        self.afterwards: Callable[[], object] = lambda: None
        self.gate = asyncio.Event()
        self.gate.set()
        self.done: list[tuple[str, ...]] = []

    @property
    def live(self) -> list[LiveRow]:
        return self._names.live()

    @property
    def running(self) -> set[str]:
        return {row.branch for row in self.live}

    def find(self, branch: str) -> LiveRow | None:
        return next((row for row in self.live if row.branch == branch), None)

    async def settled(self, branch: str) -> LiveRow | None:
        return self.find(branch)

    async def checkpoint(
        self,
        _sessions: object,
        branch: str,
        options: CaptureOptions,
        loss: LossConsent,
        agree: Callable[[], Awaitable[object]],
    ) -> Checkpointed:
        async with self._step("park", branch):
            row = self.find(branch)
            assert row is not None
            assert (options, loss.agreed) == (CaptureOptions(keep_frozen=True, undone=True), False)
            await agree()
            kept = msgspec.structs.replace(capture_of(row), tier="live")
            with self._names.change("park") as change:
                change.add(kept)
                change.advance(branch, kept.id)
                change.forget(row)
                change.replace_session(branch, kept.id)
        return Checkpointed(kept)

    async def restore(self, _sessions: object, branch: str, name: str, loss: LossConsent) -> Restored:
        async with self._step("restore", branch, name):
            assert not loss.agreed
            restore(self._names, branch, self._names.resolve(name))
        live: Any = SimpleNamespace(restarted=None)  # the only attribute that is used
        return Restored(live, None, [degradation("shell-not-restored", detail="it lacks something")])

    @contextlib.asynccontextmanager
    async def _step(self, *words: str) -> AsyncIterator[None]:
        async with self.turn(words[1]):
            self.done.append(words)
            await self.gate.wait()
            yield
        for_nobody(self.afterwards)  # a change by others


def restore(names: Names, branch: str, origin: Capture) -> Capture:
    """Record a restore in place, or a start if no session is live. Return the capture of the replaced session."""
    new, old = row_of(branch), next((row for row in names.live() if row.branch == branch), None)
    aside = capture_of(old or new)
    with names.change("reserve") as change:
        change.reserve(new, beside=old is not None)
    with names.change("restore") as change:
        if old is not None:
            change.add(aside)
            change.forget(old)
            change.replace_session(branch, aside.id)
        change.ready(new, origin.id)
    return aside


@pytest.fixture
def sessions(names: Names) -> RecordedSessions:
    return RecordedSessions(names)


class History:
    """The service functions, called on a home with RecordedSessions."""

    def __init__(self, names: Names, sessions: RecordedSessions) -> None:
        self._home: Any = SimpleNamespace(names=names, sessions=sessions)

    async def undo(self, number: int | None, branch: str | None = None) -> UndoFacts:
        return await service_history.undo(self._home, UndoRequest(number=number, branch=branch))

    async def rename(self, branch: str, new: str) -> None:
        await service_history.rename(self._home, branch, RenameRequest(to=new))

    async def remove(self, names: list[str]) -> None:
        await service_history.remove(self._home, RemoveRequest(names=names))

    async def operations(self, limit: int | None) -> list[OperationFacts]:
        pages = await service_history.operations(self._home, OperationsQuery(limit=limit))
        return [one for page in pages for one in page]


@pytest.fixture
def history(names: Names, sessions: RecordedSessions, monkeypatch: pytest.MonkeyPatch) -> History:
    for call in ("restore", "checkpoint"):
        monkeypatch.setattr(session_undo, call, getattr(sessions, call))
    return History(names, sessions)


@pytest.fixture
def tip(names: Names) -> Capture:
    """A capture that is the tip of the branch `main`, which is not live, and the checkpoint `one`."""
    capture = begin_and_end(names)
    name_it(names, "one", capture)
    return capture


def undo(history: History, number: int | None = None, branch: str | None = None) -> UndoFacts:
    return asyncio.run(history.undo(number, branch))


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def state(names: Names) -> tuple[object, ...]:
    return names.refs(), names.live(), names.operations()


def park(names: Names, tip: Capture) -> Capture:
    """Record that a session on `main` was parked as checkpoint `parked`. Return the checkpoint's capture.

    An undo of this restores one session and moves two names.
    """
    row = row_of("main")
    begin(names, row, tip.id)
    kept = capture_of(row, parents=[tip.id])
    with names.change("park") as change:
        change.add(kept)
        change.advance("main", kept.id)
        change.create("parked", Ref(kind="checkpoint", capture=kept.id))
        change.forget(row)
    return kept
