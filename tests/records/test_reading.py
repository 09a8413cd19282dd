"""Reading names.db: each thread has a connection of its own, and sees committed transactions only."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from tests.records.test_names_store import begin, begin_and_end, capture_of, name_it, row_of
from tests.waiting import DEADLINE_S
from waypoint.branch.graph import in_pieces, limited, walk_back
from waypoint.model.errors import Failed, StoreDamaged
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, Proof, Ref, Standing
from waypoint.records.change import Change
from waypoint.records.names import Names
from waypoint.records.reading import PIECE

Found = TypeVar("Found")


@pytest.fixture
def tip(names: Names) -> Capture:
    """The capture at the tip of branch `main`; no session is live."""
    return begin_and_end(names)


def in_a_thread(look: Callable[[], Found]) -> Found:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(look).result(timeout=DEADLINE_S)


def test_a_reader_does_not_see_the_open_transaction_of_another_thread(names: Names, tip: Capture) -> None:
    state = names.refs(), names.captures(), names.live(), names.operations()

    def look() -> tuple[object, ...]:
        assert names.resolve("main") == tip
        return names.refs(), names.captures(), names.live(), names.operations()

    with contextlib.suppress(RuntimeError), names.change("checkpoint") as change:
        later = msgspec.structs.replace(tip, id=new_id(), parents=[tip.id])
        change.add(later)
        change.advance("main", later.id)
        change.create("named", Ref(kind="checkpoint", capture=later.id))
        change.reserve(row_of("other"))
        assert in_a_thread(look) == state  # while a transaction is open that will be rolled back
        assert look() == state  # the writing thread reads through its Change
        assert change.resolve("main") == later
        raise RuntimeError
    assert look() == state
    name_it(names, "named", tip)
    assert list(in_a_thread(names.refs)) == ["main", "named"]


def test_readers_cannot_write(names: Names, tip: Capture) -> None:
    change = Change(names._execute, names.path, "by a reader")
    with pytest.raises(Failed, match="readonly"):
        change.put("main", None)


def test_the_connections_of_ended_threads_are_closed(names: Names, tip: Capture) -> None:
    for _thread in range(20):
        thread = threading.Thread(target=names.refs)
        thread.start()
        thread.join()
    names.refs()
    assert len(names._readers._open) <= 3


def test_sqlite_can_empty_its_log_while_a_listing_is_unfinished(names: Names, tip: Capture, tmp_path: Path) -> None:
    listings = names.iter_links(), names.iter_operations()
    assert next(listings[0])
    assert next(listings[1])
    names.resolve("main")
    names.standing(tip.id)
    name_it(names, "later", tip)
    with contextlib.closing(sqlite3.connect(tmp_path / "names.db")) as db:
        [(busy, _, _)] = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert busy == 0
    assert (tmp_path / "names.db-wal").stat().st_size == 0


def test_after_close_the_database_has_no_other_files(tmp_path: Path) -> None:
    names = Names(tmp_path / "names.db")
    begin(names, row_of("main"))
    in_a_thread(names.refs)
    names.refs()
    names.close()
    assert [path.name for path in tmp_path.iterdir()] == ["names.db"]


# --- long listings


@pytest.fixture
def many(names: Names) -> list[Capture]:
    """More captures than two pieces of a listing, the oldest first. Some have equal times; some have two children."""
    row, made = row_of("main"), list[Capture]()
    with names.change("make") as change:
        for number in range(2 * PIECE + 10):
            parents = [made[number - 2].id if number % 2 else made[number - 1].id] if number > 1 else []
            capture = capture_of(row, parents=parents)
            made.append(msgspec.structs.replace(capture, created=1000.0 + number // 3))
            change.add(made[-1])
    return made


def test_links_are_listed_in_pieces_the_newest_first(names: Names, many: list[Capture]) -> None:
    pieces = list(names.iter_links())
    assert [len(piece) for piece in pieces] == [PIECE, PIECE, 10]
    newest_first = sorted(many, key=lambda one: (-one.created, one.id))
    assert [link for piece in pieces for link in piece] == [
        (one.id, one.created, one.parents, "main", "/") for one in newest_first
    ]
    ids = [one.id for one in newest_first]
    assert list(names.captures_of(ids).items()) == list(zip(ids, newest_first, strict=True))
    assert sorted(one.id for one in names.captures()) == sorted(one.id for one in many)


def test_a_listing_leaves_out_captures_that_are_added_meanwhile(names: Names, many: list[Capture]) -> None:
    listing = names.iter_links()
    found = next(listing)
    with names.change("add") as change:
        change.add(msgspec.structs.replace(many[0], id=new_id(), created=5000.0))
    found += [one for piece in listing for one in piece]
    assert sorted(one.id for one in found) == sorted(one.id for one in many)


def test_a_listing_makes_few_queries(names: Names, many: list[Capture]) -> None:
    queries: list[str] = []
    names.refs()
    names._readers._local.db.set_trace_callback(queries.append)
    for piece in names.iter_links():
        ids = [link.id for link in piece]
        names.captures_of(ids)
        names.names_of_all(ids)
        names.standings(ids)
    assert len(queries) == 4 * 3 + 1
    plans = [row[3] for row in names._execute(f"EXPLAIN QUERY PLAN {queries[4]}", ())]
    assert [plan for plan in plans if "captures_by_time" in plan]
    assert not [plan for plan in plans if "TEMP B-TREE" in plan]


def test_a_walk_back_reads_only_the_captures_that_are_asked_for(
    names: Names, many: list[Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    captures_of = names.captures_of
    monkeypatch.setattr(names, "captures_of", lambda ids, **how: read.extend(ids) or captures_of(ids, **how))
    walk = walk_back(names, [many[-1]])
    first = [next(walk) for _ in range(5)]
    assert len(read) <= 5
    rest = [one for piece in in_pieces(walk) for one in piece]
    order = {one.id: place for place, one in enumerate([*first, *rest])}
    assert len(order) == len(first) + len(rest) == len(read) + 1
    assert all(order[parent] > order[one.id] for one in [*first, *rest] for parent in one.parents)
    assert [len(piece) for piece in limited(in_pieces(many), PIECE + 1)] == [PIECE, 1]


def test_operations_are_listed_in_pieces(names: Names) -> None:
    for number in range(PIECE + 5):
        with names.change(f"verb {number}") as change:
            change.put("name", Ref(kind="checkpoint", capture=f"{number:032}"))
    pieces = list(names.iter_operations())
    assert [len(piece) for piece in pieces] == [PIECE, 5]
    assert [one.number for piece in pieces for one in piece] == list(range(PIECE + 5, 0, -1))
    assert [one.verb for one in names.operations(3)] == [f"verb {number}" for number in (68, 67, 66)]
    assert len(names.operations(PIECE + 1)) == PIECE + 1
    assert names.last_number() == PIECE + 5


# --- standings: where the image of a capture is, and whether it is durable


def test_a_standing_is_the_default_until_another_one_is_recorded(names: Names, tip: Capture) -> None:
    assert names.standing(tip.id) == Standing(image=None, durable=False)
    proof = Proof(at=1.0, ms=2.0, code="differs", differences=((3, -1, "name a", "name b"),))
    known = Standing(image="abc", durable=True, proof=proof)
    with names.change("ingest") as change:
        change.set_standing(tip.id, known)
        assert names.standing(tip.id) == Standing()
        assert change.standing(tip.id) == known
    other = new_id()
    assert names.standings([other, tip.id]) == {other: Standing(), tip.id: known}
    assert names.capture(tip.id) == tip
    assert names.operations(1)[0].verb == "end"  # a change of a standing is not logged as an operation


def test_the_standing_of_an_unknown_capture_cannot_be_set(names: Names) -> None:
    with pytest.raises(StoreDamaged), names.change("ingest") as change:
        change.set_standing(new_id(), Standing(durable=True))
