"""Long listings: children before parents, decoded in pieces, off the event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from tests.records.test_names_store import capture_of, row_of
from tests.waiting import PATIENCE_S, wait_until
from waypoint.branch import removal
from waypoint.branch.graph import walk_back
from waypoint.cli.commands.log import draw
from waypoint.linux.tasks.procfs import Resident
from waypoint.model.errors import Failed, StoreDamaged, UnknownName, UsageProblem
from waypoint.model.facts import CaptureFacts
from waypoint.model.ids import new_id
from waypoint.model.records import HOST_IDS, Capture, Ref, SessionLimits
from waypoint.model.requests import MOST_NAMES, DuQuery, GcRequest, LogQuery, OperationsQuery, SessionsQuery
from waypoint.model.verbs import COMPLETE
from waypoint.records.names import Names
from waypoint.records.reading import PIECE
from waypoint.service import history, housekeeping, sessions, usage
from waypoint.service.inside import serving
from waypoint.service.keeping import Keeping
from waypoint.service.shapes import Pages
from waypoint.session import session_facts
from waypoint.upper.copy_pool import CopyPool

COUNT = 4 * PIECE
"""The length of the chain of captures. Each is the tip of a branch of its own."""


T = TypeVar("T")


class Place(NamedTuple):
    """A fake home that has only `names`."""

    home: Any
    names: Names


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    names = Names(tmp_path / "names.db")
    resources = SimpleNamespace(names=names, pool=None, trusted=None)
    registry = SimpleNamespace(live=[], running=set(), unreachable={}, resources=resources, find=lambda branch: None)
    counts = SimpleNamespace(want=lambda captures, wait_s: None, of_sessions=lambda page: page)
    yield Place(SimpleNamespace(names=names, sessions=registry, counts=counts), names)
    names.close()


def put_chain(names: Names, times: list[float]) -> list[Capture]:
    """Record a chain of captures without names, taken at `times`, the first capture first."""
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


def flat(pages: Pages[T]) -> list[T]:
    return [one for page in pages for one in page]


def log(place: Place, **query: Any) -> list[CaptureFacts]:
    return flat(asyncio.run(history.log(place.home, LogQuery(**query))))


# --- the order


STEPPED_BACK = [*(1000.0 + number for number in range(PIECE)), *(10.0 + number for number in range(2 * PIECE))]


@pytest.mark.parametrize(
    "times",
    [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 9.0, 2.0, 3.0], [5.0, 5.0, 5.0, 5.0], STEPPED_BACK],
    ids=["straight", "backwards", "one step back", "one moment", "a step back in a long history"],
)
def test_all_captures_are_listed_children_first_also_if_the_clock_was_set_back(
    place: Place, times: list[float]
) -> None:
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


def test_forks_are_listed_before_their_origin(place: Place) -> None:
    (origin,) = put_chain(place.names, [5.0])
    forks = [
        msgspec.structs.replace(capture_of(row_of("f"), parents=[origin.id]), created=at) for at in (9.0, 1.0, 1.0)
    ]
    with place.names.change("fork") as change:
        for fork in forks:
            change.add(fork)
    found = [one.capture for one in log(place, all=True)]
    assert (found[0], found[-1], len(found)) == (forks[0].id, origin.id, 4)


# --- listings are decoded in pieces, in threads


@pytest.fixture
def decoded(place: Place, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each decoded capture: whether the main thread decoded it."""
    seen: list[bool] = []
    captures_of = place.names.captures_of

    def note(many: Sequence[str], **how: bool) -> dict[str, Capture]:
        seen.extend([threading.current_thread() is threading.main_thread()] * len(many))
        return captures_of(many, **how)

    monkeypatch.setattr(place.names, "captures_of", note)
    return seen


async def all_captures(home: Any) -> Pages[object]:
    return await history.log(home, LogQuery(all=True))


async def all_operations(home: Any) -> Pages[object]:
    return await history.operations(home, OperationsQuery())


async def all_sessions(home: Any) -> Pages[object]:
    return await sessions.sessions(home, SessionsQuery(all=True))


LISTINGS = [all_captures, history.branches, all_sessions, all_operations]


@pytest.mark.parametrize("listing", LISTINGS)
def test_a_listing_decodes_only_the_piece_that_is_asked_for(
    place: Place, chain: list[Capture], decoded: list[bool], listing: Callable[[Any], Any]
) -> None:
    found = asyncio.run(listing(place.home))
    assert decoded == []  # nothing in the event loop
    first = next(page for page in found if page)
    assert len(decoded) <= len(first) <= PIECE
    rest = flat(found)
    assert len(decoded) <= COUNT + 1
    assert len(first) + len(rest) >= COUNT or listing is all_operations


def test_sessions_and_branches_are_sorted_and_complete(place: Place, chain: list[Capture]) -> None:
    names = [f"b{number:04}" for number in range(COUNT)]
    assert [row.branch for row in flat(asyncio.run(sessions.sessions(place.home, SessionsQuery(all=True))))] == [  # type: ignore[attr-defined]
        *names,
        "main",
    ]
    rows = flat(asyncio.run(history.branches(place.home)))
    assert [row.name for row in rows] == [*names, "main", "plain"]
    assert [row.tip for row in rows] == [*(one.id for one in chain), chain[-1].id, None]


def test_names_are_listed_in_the_order_of_their_numbers(place: Place) -> None:
    wanted = ["f", "f-1", "f-02", "f-2", "f-10", "f-10/1", "f-10/9", "f-10/10", "f1", "f20", "fork", "g"]
    (tip,) = put_chain(place.names, [1.0])
    with place.names.change("name") as change:
        for name in sorted(wanted):
            change.put(name, Ref(kind="branch", capture=tip.id, created=1.0))
    listed: list[Any] = flat(asyncio.run(sessions.sessions(place.home, SessionsQuery(all=True))))
    assert [row.branch for row in listed] == wanted
    for listing in (history.branches, history.names):
        rows: Any = flat(asyncio.run(listing(place.home)))
        assert [row.name for row in rows] == wanted
    assert log(place, all=True)[0].names == wanted


# --- captures that gc removes during a listing


def forget(place: Place, *, names: bool = True) -> None:
    """Remove all captures and names, as `gc` does when all branches were removed. If `names` is False, keep the names:
    this is damage.
    """
    with place.names.change("gc") as change:
        if names:
            for name in change.refs():
                change.put(name, None)
        change.forget_captures([capture.id for capture in change.captures()])


@pytest.mark.parametrize("listing", [all_captures, history.branches, all_sessions])
def test_a_listing_leaves_out_captures_that_gc_removes_meanwhile(
    place: Place, chain: list[Capture], listing: Callable[[Any], Any]
) -> None:
    found = asyncio.run(listing(place.home))
    assert next(page for page in found if page)
    forget(place)
    assert len(flat(found)) <= PIECE


@pytest.mark.parametrize("listing", [history.branches, all_sessions])
def test_a_branch_without_the_record_of_its_tip_is_damage(
    place: Place, chain: list[Capture], listing: Callable[[Any], Any]
) -> None:
    found = asyncio.run(listing(place.home))
    assert next(found)
    forget(place, names=False)
    with pytest.raises(StoreDamaged):
        list(found)


def test_a_walk_back_ends_at_captures_that_gc_removes_meanwhile(place: Place, chain: list[Capture]) -> None:
    found = asyncio.run(history.log(place.home, LogQuery(name="main")))
    assert len(next(found)) == PIECE
    forget(place)
    assert len(flat(found)) <= PIECE


def test_a_missing_parent_is_damage(place: Place, chain: list[Capture]) -> None:
    found = walk_back(place.names, [chain[-1]])
    next(found)
    with place.names.change("damage") as change:
        change.forget_captures([chain[-2].id])
    with pytest.raises(StoreDamaged):
        next(found)


def test_a_name_that_is_moved_while_it_is_looked_up_is_looked_up_again(
    place: Place, chain: list[Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = place.names.ref

    def moved_meanwhile(name: str) -> Ref | None:
        found = ref(name)
        monkeypatch.setattr(place.names, "ref", ref)
        forget(place)
        return found

    monkeypatch.setattr(place.names, "ref", moved_meanwhile)
    with pytest.raises(UnknownName):
        place.names.find("main")


def test_a_dry_run_of_gc_leaves_out_captures_that_another_gc_has_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_chain(place.names, [1.0, 2.0])
    surveyed = removal.survey

    def and_another_gc(*given: Any) -> removal.Survey:
        found = surveyed(*given)
        forget(place)
        return found

    monkeypatch.setattr(removal, "survey", and_another_gc)
    place.home.path, place.home.present_strangers = place.names.path.parent, list
    place.home.keeping = Keeping(1.0, removal.NO_POLICY, 0, 0)
    monkeypatch.setattr(housekeeping, "held", lambda *_: [])
    done = asyncio.run(housekeeping.gc(place.home, GcRequest(dry_run=True)))
    assert done.removed == []


def places() -> Any:
    return SimpleNamespace(moving=asyncio.Lock(), places=asyncio.Semaphore(1))


def test_a_request_for_a_foreign_capture_reads_the_history_in_a_thread(
    place: Place, chain: list[Capture], decoded: list[bool]
) -> None:
    (foreign,) = put_chain(place.names, [1.0])
    live: Any = SimpleNamespace(branch="main", hooks_running=0, inside=places())
    place.home.sessions.find = lambda branch: live
    for words in (["restore", foreign.id], ["fork", foreign.id, "new"], ["log", foreign.id], ["restore", new_id()]):
        answer = asyncio.run(serving.serve(place.home, live, words))
        assert answer.exit == 2, answer
    assert decoded.count(False) >= 3 * COUNT
    assert True not in decoded


@pytest.mark.parametrize("words", [["log", "-n", str(COUNT)], [COMPLETE, "restore", ""]], ids=["log", "TAB"])
def test_names_in_a_long_history_are_looked_up_in_a_thread(
    place: Place, chain: list[Capture], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    live: Any = SimpleNamespace(branch="main", hooks_running=0, inside=places())
    place.home.sessions.find = lambda branch: live
    with place.names.change("name") as change:
        change.put("cp", Ref(kind="checkpoint", capture=chain[0].id, created=1.0))
    on_loop: list[bool] = []
    ref = place.names.ref

    def note(name: str) -> Ref | None:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return ref(name)

    monkeypatch.setattr(place.names, "ref", note)
    answer = asyncio.run(serving.serve(place.home, live, words))
    assert answer.exit == 0
    assert "cp" in answer.text
    assert "b0001" not in answer.text
    assert on_loop.count(False) >= COUNT
    assert on_loop.count(True) < 5


# --- measuring with du


def live_and_pool(may_end: threading.Event, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A fake session, and a pool that measures its tree when `may_end` is set; each time the tree has one byte more."""
    measured: list[str] = []

    def usage_of(tree: str, _limit_s: float) -> int:
        measured.append(tree)
        may_end.wait(PATIENCE_S)
        return len(measured)

    walls = {
        "ids": HOST_IDS,
        "why_host_ids": "",
        "seccomp": "default",
        "why_no_seccomp": "",
        "lowered": [],
        "limits": SessionLimits(),
        "unlimited": [],
    }
    record = SimpleNamespace(row=row_of("main"), init_pid=1, cgroup="/nowhere", left_out=[], **walls)
    live: Any = SimpleNamespace(branch="main", record=record, attached=0, measuring=None, ending=None)
    live.restarted, live.not_back, live.no_way_out, live.measured_until = None, [], str, 0.0
    live.moved_ports, live.why_no_ports = (), str
    live.shell = SimpleNamespace(watch=SimpleNamespace(is_state_lost=False))
    live.shell_path, live.parks_in_s = "/bin/bash", lambda: None
    monkeypatch.setattr(session_facts, "_measure_processes", lambda live: (1, Resident(3, 2, 1), 1))
    return live, SimpleNamespace(usage=usage_of, measured=measured)


def test_requests_during_a_measurement_share_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    live, pool = live_and_pool(may_end, monkeypatch)

    async def ask() -> None:
        asked = [asyncio.ensure_future(session_facts.of_live(live, pool, lambda _: True)) for _ in range(20)]
        await asyncio.to_thread(wait_until, lambda: bool(pool.measured), "one measures")
        asked.append(asyncio.ensure_future(session_facts.of_live(live, pool, lambda _: True)))
        asked[0].cancel()  # the client that began the measurement disconnects
        may_end.set()
        assert [one.upper_bytes for one in await asyncio.gather(*asked[1:])] == [1] * 20
        assert pool.measured == [live.record.row.tree]
        assert (await session_facts.of_live(live, pool, lambda _: True)).upper_bytes == 2

    asyncio.run(ask())


def test_a_session_that_cannot_be_measured_in_time_delays_no_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    live, pool = live_and_pool(may_end, monkeypatch)
    monkeypatch.setattr(session_facts, "PATIENCE_S", 0.01)

    async def ask() -> None:
        late = await session_facts.of_live(live, pool, lambda _: False)
        assert (late.memory_bytes, late.shared_bytes, late.upper_bytes) == (None, None, None)
        assert late.pid == live.record.init_pid
        assert late.degraded is not None
        assert [one["code"] for one in late.degraded] == ["not-measured"]
        may_end.set()
        await live.measuring
        for _ in range(2):  # the figures of a long measurement stay for a while
            found = await session_facts.of_live(live, pool, lambda _: True)
            assert (found.upper_bytes, found.shared_bytes, found.degraded) == (1, 2, None)

    asyncio.run(ask())


def test_a_session_whose_files_cannot_be_measured_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    live, pool = live_and_pool(threading.Event(), monkeypatch)

    def fail(_tree: str, _limit_s: float) -> int:
        raise Failed("measure the upper tree", "main", "Input/output error", "look at it")

    pool.usage = fail
    found = asyncio.run(session_facts.of_live(live, pool, lambda _: True))
    assert (found.memory_bytes, found.upper_bytes) == (1, None)
    assert found.degraded is not None
    assert [(one["code"], one["detail"]) for one in found.degraded] == [("not-measured", "Input/output error")]


def test_a_session_whose_files_cannot_be_measured_is_listed_by_du_without_sizes(tmp_path: Path) -> None:
    pool, row = CopyPool(str(tmp_path)), row_of("main")
    pool.create(row.tree)
    found = usage._of_session(row, pool.measure([row.tree], 0.0))
    assert found is not None
    assert (found["names"], found["files_bytes"], found["own_files_bytes"]) == (["main"], None, None)
    assert [(one["code"], one["detail"]) for one in found["degraded"]] == [("not-measured", "it takes longer than 0 s")]


def test_du_refuses_too_many_names(place: Place) -> None:
    names = " ".join(f"b{number}" for number in range(MOST_NAMES + 1))
    with pytest.raises(UsageProblem, match="at most 256"):
        asyncio.run(usage.du(place.home, DuQuery(names=names)))
