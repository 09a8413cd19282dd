"""Captures that the event loop holds: what was dropped meanwhile is removed in a thread."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.store.conftest import names as names
from tests.store.test_names_store import capture_of, row_of
from waypoint.capture import taking
from waypoint.capture.captures import Captures
from waypoint.model.records import Capture
from waypoint.session.live.holding import holding
from waypoint.store.names import Names


@pytest.fixture
def captures(names: Names, tmp_path: Path) -> Captures:
    nothing: Any = None
    return Captures(tmp_path, nothing, names, nothing, nothing, nothing)


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What was removed from the disk: the capture's id, and whether that was in the main thread."""
    seen: list[tuple[str, bool]] = []

    def note(_area: object, capture_id: str, _layers: object) -> None:
        seen.append((capture_id, threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(taking, "drop_layers", note)
    return seen


def made() -> Capture:
    return capture_of(row_of("main"))


async def test_what_was_dropped_while_it_was_held_is_removed_beside_the_loop(
    captures: Captures, removed: list[tuple[str, bool]]
) -> None:
    first, second = made(), made()
    async with holding(captures, first, second) as held:
        assert [one.capture for one in held] == [first, second]
        captures.drop(second)
        assert removed == []
    assert removed == [(second.id, False)]


async def test_it_is_removed_though_the_caller_is_cancelled(
    captures: Captures, removed: list[tuple[str, bool]]
) -> None:
    capture, is_held = made(), asyncio.Event()

    async def hold() -> None:
        async with holding(captures, capture):
            captures.drop(capture)
            is_held.set()
            await asyncio.Event().wait()

    holder = asyncio.ensure_future(hold())
    await is_held.wait()
    holder.cancel()
    await asyncio.wait([holder])
    assert removed == [(capture.id, False)]
