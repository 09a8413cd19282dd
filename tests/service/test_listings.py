"""Long listings: children before parents, decoded in pieces, off the event loop, at a gate that waits for pauses."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.store.test_names_store import capture_of, row_of
from waypoint.cli.history.graph import draw
from waypoint.model.facts import CaptureFacts
from waypoint.model.ids import new_id
from waypoint.model.queries import LogQuery, OperationsQuery, SessionsQuery
from waypoint.model.records import Capture, Ref
from waypoint.service import history, sessions
from waypoint.service.inside import serving
from waypoint.store.names import Names
from waypoint.store.reading import PIECE

COUNT = 4 * PIECE
"""Captures in a chain, each the tip of a branch of its own."""


class Place(NamedTuple):
    """`home`: a home of nothing but `names`. `waits`: one entry for each time that its gate was waited at: whether that
    was in the main thread.
    """

    home: Any
    names: Names
    waits: list[bool]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    names = Names(tmp_path / "names.db")
    waits: list[bool] = []

    def wait() -> None:
        waits.append(threading.current_thread() is threading.main_thread())

    resources = SimpleNamespace(names=names, captures=SimpleNamespace(quiet=SimpleNamespace(wait=wait)), pool=None)
    registry = SimpleNamespace(live=[], resources=resources, find=lambda branch: None)
    yield Place(SimpleNamespace(names=names, between=wait, sessions=registry), names, waits)
    names.close()


def put_chain(names: Names, times: list[float]) -> list[Capture]:
    """Record a chain of captures that were taken at `times`, the first of all first; none has a name."""
    made: list[Capture] = []
    with names.change("make") as change:
        for created in times:
            capture = capture_of(row_of("main"), parents=[made[-1].id] if made else [])
            made.append(msgspec.structs.replace(capture, created=created))
            change.add(made[-1])
    return made


@pytest.fixture
def chain(place: Place) -> list[Capture]:
    made = put_chain(place.names, [1000.0 + number for number in range(COUNT)])
    with place.names.change("name") as change:
        for number, capture in enumerate(made):
            change.put(f"b{number:04}", Ref(kind="branch", capture=capture.id, created=1.0))
        change.put("main", Ref(kind="branch", capture=made[-1].id, created=1.0))
        change.put("plain", Ref(kind="branch", capture=None, created=1.0))
    return made


def log(place: Place, **query: Any) -> list[CaptureFacts]:
    return list(asyncio.run(history.log(place.home, LogQuery(**query))))


# --- the order


STEPPED_BACK = [*(1000.0 + number for number in range(PIECE)), *(10.0 + number for number in range(2 * PIECE))]


@pytest.mark.parametrize(
    "times",
    [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 9.0, 2.0, 3.0], [5.0, 5.0, 5.0, 5.0], STEPPED_BACK],
    ids=["straight", "backwards", "one step back", "one moment", "a step back in a long history"],
)
def test_all_captures_come_children_first_whatever_the_clock_did(place: Place, times: list[float]) -> None:
    made = put_chain(place.names, times)
    beside = put_chain(place.names, [2.5])
    found = [one.capture for one in log(place, all=True)]
    assert [capture for capture in found if capture != beside[0].id] == [one.id for one in reversed(made)]
    assert len(found) == len(made) + 1
    parents = {one.id: one.parents for one in [*made, *beside]}
    drawn = draw({capture: parents[capture] for capture in found if capture != beside[0].id})
    assert {line for line, _ in drawn} == {"*"}


def test_histories_beside_each_other_are_sorted_by_time(place: Place) -> None:
    one, other = put_chain(place.names, [1.0, 3.0, 5.0]), put_chain(place.names, [2.0, 4.0, 6.0])
    by_time = sorted([*one, *other], key=lambda capture: -capture.created)
    assert [found.capture for found in log(place, all=True)] == [capture.id for capture in by_time]
    assert [found.capture for found in log(place, all=True, limit=2)] == [capture.id for capture in by_time[:2]]


def test_both_forks_come_before_what_they_were_forked_from(place: Place) -> None:
    (origin,) = put_chain(place.names, [5.0])
    forks = [
        msgspec.structs.replace(capture_of(row_of("f"), parents=[origin.id]), created=at) for at in (9.0, 1.0, 1.0)
    ]
    with place.names.change("fork") as change:
        for fork in forks:
            change.add(fork)
    found = [one.capture for one in log(place, all=True)]
    assert (found[0], found[-1], len(found)) == (forks[0].id, origin.id, 4)


# --- in pieces, at the gate, off the loop


@pytest.fixture
def decoded(place: Place, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each capture that is decoded from now on: whether that was in the main thread."""
    seen: list[bool] = []
    read, read_many = place.names.capture, place.names.captures_of

    def note(count: int) -> None:
        seen.extend([threading.current_thread() is threading.main_thread()] * count)

    monkeypatch.setattr(place.names, "capture", lambda one: note(1) or read(one))
    monkeypatch.setattr(place.names, "captures_of", lambda many: note(len(many)) or read_many(many))
    return seen


async def all_captures(home: Any) -> Iterator[object]:
    return await history.log(home, LogQuery(all=True))


async def all_operations(home: Any) -> Iterator[object]:
    return await history.operations(home, OperationsQuery())


async def all_sessions(home: Any) -> Iterator[object]:
    return await sessions.sessions(home, SessionsQuery(all=True))


LISTINGS = [all_captures, history.branches, all_sessions, all_operations]


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_listing_decodes_a_piece_when_it_is_asked_for_and_waits_at_the_gate(
    place: Place, chain: list[Capture], decoded: list[bool], listing: Callable[[Any], Any]
) -> None:
    found = asyncio.run(listing(place.home))
    assert (decoded, place.waits) == ([], [])  # nothing in the event loop
    assert next(found)
    assert len(decoded) <= PIECE
    rest = list(found)
    assert len(place.waits) >= COUNT // PIECE
    assert len(decoded) <= COUNT + 1
    assert len(rest) + 1 >= COUNT or listing is all_operations


def test_sessions_and_branches_are_sorted_and_complete(place: Place, chain: list[Capture]) -> None:
    names = [f"b{number:04}" for number in range(COUNT)]
    assert [row.branch for row in asyncio.run(sessions.sessions(place.home, SessionsQuery(all=True)))] == [  # type: ignore[attr-defined]
        *names,
        "main",
    ]
    rows = list(asyncio.run(history.branches(place.home)))
    assert [row.name for row in rows] == [*names, "main", "plain"]
    assert [row.tip for row in rows] == [*(one.id for one in chain), chain[-1].id, None]


def test_a_session_that_asks_for_a_foreign_name_has_its_history_read_beside_the_loop(
    place: Place, chain: list[Capture], decoded: list[bool]
) -> None:
    (foreign,) = put_chain(place.names, [1.0])
    live: Any = SimpleNamespace(branch="main")
    for words in (["restore", foreign.id], ["fork", foreign.id, "new"], ["log", foreign.id], ["restore", new_id()]):
        answer = asyncio.run(serving.serve(place.home, live, words))
        assert answer.exit == 2, answer
    assert decoded.count(False) >= 3 * COUNT
    assert True not in decoded
    assert len(place.waits) >= 3 * COUNT // PIECE
    assert True not in place.waits


def test_a_long_log_inside_a_session_waits_at_the_gate(place: Place, chain: list[Capture]) -> None:
    live: Any = SimpleNamespace(branch="main")
    answer = asyncio.run(serving.serve(place.home, live, ["log", "-n", str(COUNT)]))
    assert (answer.exit, answer.text.count("\n")) == (0, COUNT)
    assert place.waits == [False] * (COUNT // PIECE)
