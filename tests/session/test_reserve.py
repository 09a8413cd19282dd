"""Reserving sessions: the look at what is restored, and the turn of the record."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.store.test_names_store import SETTING, capture_of, row_of
from waypoint.model.errors import CannotCapture
from waypoint.session.birth.birth import plan_birth, reserve
from waypoint.store.names import Names


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    store = Names(tmp_path / "names.db")
    yield store
    store.close()


class HeldByMany:
    """In place of the owner of captures: `threads` are those in which a capture was held, checked and let go."""

    def __init__(self, *, is_broken: bool) -> None:
        self.threads: list[threading.Thread] = []
        self.is_broken = is_broken

    @contextlib.contextmanager
    def hold(self, capture: object) -> Iterator[Any]:
        self.threads.append(threading.current_thread())
        yield SimpleNamespace(check=self._check, memory_bytes=0)
        self.threads.append(threading.current_thread())

    def _check(self, copies: int, leaving: object) -> None:
        self.threads.append(threading.current_thread())
        if self.is_broken:
            raise CannotCapture("restore", "capture c", "its images are gone", "")


@pytest.mark.parametrize("is_broken", [False, True])
async def test_what_is_restored_is_held_and_checked_beside_the_loop(names: Names, *, is_broken: bool) -> None:
    """The last who lets go of a capture that was dropped removes its files."""
    captures, pool = (
        HeldByMany(is_broken=is_broken),
        SimpleNamespace(grow_if_needed=lambda: None, check_writable=lambda: None),
    )
    resources: Any = SimpleNamespace(names=names, captures=captures, trusted=None, pool=pool)
    births = [plan_birth(resources, "new", capture_of(row_of("old")), SETTING, (24, 80), processes=True)]
    with pytest.raises(CannotCapture) if is_broken else contextlib.nullcontext():
        await reserve(resources, births)
    assert captures.threads
    assert threading.main_thread() not in captures.threads
    assert [row.branch for row in names.live(ready=False)] == ([] if is_broken else ["new"])
