"""Undo: its checks, its transactions, and the requests that wait for it. Sessions are only recorded (recorded.py)."""

import asyncio
import itertools
import time
from typing import Any

import msgspec
import pytest

from tests.answers import texts
from tests.records.test_names_store import begin, capture_of, end, name_it, row_of
from tests.service.recorded import History, RecordedSessions, is_main_thread, park, restore, state, undo
from tests.waiting import DEADLINE_S
from waypoint.branch.removal import survey
from waypoint.model.errors import Failed, StateConflict, UnknownName, WaypointError
from waypoint.model.facts import OperationFacts, UndoFacts
from waypoint.model.records import Caller, Capture, Operation, Ref
from waypoint.records import reading
from waypoint.records.callers import asked_by, current, under_intent
from waypoint.records.names import Names
from waypoint.records.reading import PIECE
from waypoint.session import undo as session_undo
from waypoint.session.live.pending_records import PendingRecords


def test_an_undo_reports_the_undone_operation(names: Names, history: History, tip: Capture) -> None:
    [before] = asyncio.run(history.operations(1))
    told = undo(history)
    assert (told.undone.number, told.undone.verb, told.undone.undo) == (before.number, "checkpoint", before.undo)
    assert told.undone.undo == "remove the name one"
    assert (told.operation.verb, told.operation.undoes) == ("undo", before.number)
    assert [told.operation] == asyncio.run(history.operations(1))
    assert names.ref("one") is None


def test_an_undo_without_sessions_is_one_transaction(
    names: Names, history: History, tip: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs: list[str] = []
    change = names.change
    monkeypatch.setattr(names, "change", lambda verb: verbs.append(verb) or change(verb))
    undo(history)
    assert verbs == ["undo"]


def checkpoint_and_restore(names: Names, tip: Capture) -> tuple[Capture, Capture]:
    """Record a session on `main` that was captured and then replaced by `tip`. Return its capture, and the capture of
    the replaced session.
    """
    row = row_of("main")
    begin(names, row, tip.id)
    later = capture_of(row, parents=[tip.id])
    with names.change("checkpoint") as change:
        change.add(later)
        change.advance("main", later.id)
    return later, restore(names, "main", tip)


def test_an_undo_of_a_restore_restores_the_replaced_session(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture
) -> None:
    later, aside = checkpoint_and_restore(names, tip)
    restored = names.last_number()
    told = undo(history)
    assert sessions.done == [("restore", "main", aside.id)]
    ref = names.ref("main")
    assert ref is not None
    assert ref.capture == later.id
    assert told.undone.undo == f"restore the session that was on main, move main back to {later.id[:12]}"
    # The restore has no entry of its own, so the next undo is of an earlier operation.
    last = names.last_to_undo(lambda _: True)
    assert last is not None
    assert last.number == restored - 1


@pytest.mark.parametrize("name", ["parked", "main"])
def test_a_name_that_moves_during_an_undo_is_a_conflict(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture, name: str
) -> None:
    park(names, tip)
    number = names.last_number()
    found = names.ref(name)
    assert found is not None
    after: list[tuple[object, ...]] = []

    def move() -> None:
        with names.change("meanwhile") as change:
            change.put(name, msgspec.structs.replace(found, capture=tip.id, origin="e" * 32))
        after.append(state(names))

    sessions.afterwards = move
    with pytest.raises(StateConflict) as caught:
        undo(history)
    error = caught.value
    assert (error.tried, error.on) == ("undo", f"operation {number} (park)")
    assert error.said == f"another operation has just changed {name}"
    check_incomplete(names, history, error, number)
    assert (names.refs(), names.live(), names.operations()[1:]) == after[0], "names were moved"


def test_a_session_that_ends_during_the_undo_is_a_conflict(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture
) -> None:
    park(names, tip)

    def end_it() -> None:
        [row] = names.live()
        end(names, row, capture_of(row))

    sessions.afterwards = end_it
    number = names.last_number()
    with pytest.raises(StateConflict, match="another operation has just changed main") as caught:
        undo(history)
    check_incomplete(names, history, caught.value, number)
    assert names.ref("parked") is not None


def test_an_undo_that_fails_after_one_of_its_sessions_has_started_can_be_undone(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture
) -> None:
    fork(names, tip, "f-1", "f-2")
    ended = undo(history).operation
    assert ended is not None
    before = names.refs()

    def fail() -> None:
        raise Failed("restore", "capture", "the disk has failed", "see dmesg")

    sessions.afterwards = fail
    with pytest.raises(Failed, match="the disk has failed") as caught:
        undo(history, ended.number)
    entry = check_incomplete(names, history, caught.value, ended.number)
    assert set(entry.sessions.values()) == {(False, True)}
    sessions.afterwards = lambda: None
    assert undo(history).operation is not None, "the incomplete undo is the last operation"
    assert (names.live(), names.refs()) == ([], before)


def check_incomplete(names: Names, history: History, error: WaypointError, number: int) -> OperationFacts:
    """Check that the last entry has the deeds of an undo of the operation `number`, and that this is not undone."""
    assert names.intents() == []
    [entry] = asyncio.run(history.operations(1))
    assert (entry.verb, entry.undoes, [one["code"] for one in entry.degraded]) == ("undo", None, ["undo-incomplete"])
    assert error.next_step is not None
    assert error.next_step.endswith(f"; to reverse the part of the undo that is done: waypoint undo {entry.number}")
    operation = names.operation(number)
    assert operation is not None
    assert not operation.undone
    return entry


def fork(names: Names, origin: Capture, *branches: str) -> None:
    """Record that the sessions on `branches` were forked from `origin`."""
    with names.change("fork") as change:
        for branch in branches:
            row = row_of(branch)
            change.reserve(row)
            change.ready(row, origin.id)


def test_an_undo_whose_daemon_was_killed_before_its_first_deed_is_forgotten(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(names, tip)
    before = state(names)
    interrupt(history, monkeypatch, after=0)
    assert len(names.intents()) == 1
    resume(sessions)
    assert (state(names), names.intents(), sessions.done) == (before, [], [])


def test_an_undo_whose_daemon_was_killed_is_completed_for_its_caller(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked_by(Caller(uid=1000)):
        fork(names, tip, "f-1", "f-2", "f-3")
        ended = undo(history).operation
        assert ended is not None
        interrupt(history, monkeypatch, number=ended.number, after=2)
    assert len(names.live()) == 2
    assert names.operations()[0].number == ended.number, "a deed has an entry of its own"
    sessions.done.clear()
    resume(sessions)
    assert len(sessions.done) == 1, "a deed was repeated"
    assert {row.branch for row in names.live()} == {"f-1", "f-2", "f-3"}
    entry = names.operations()[0]
    assert (entry.undoes, entry.by, entry.degraded, names.intents()) == (ended.number, Caller(uid=1000), [], [])
    undo(history, entry.number)
    assert names.live() == []


def test_a_removal_keeps_the_captures_of_an_undo_that_has_begun(
    names: Names, history: History, tip: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, aside = checkpoint_and_restore(names, tip)
    interrupt(history, monkeypatch, after=0)
    assert not {later.id, aside.id} & set(survey(names, time.time() + 1).removable)


def test_requests_during_an_undo_have_entries_of_their_own(
    names: Names, history: History, tip: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(names, tip)
    interrupt(history, monkeypatch, after=0)
    [intent] = names.intents()
    with under_intent(intent.number):  # a session inherits the context of the undo that has started it
        name_it(names, "of-the-undo", tip)
        with asked_by(Caller(branch="main")):
            name_it(names, "of-the-session", tip)
    assert set(names.operations()[0].moves) == {"of-the-session"}
    assert set(names.intents()[0].moves) == {"of-the-undo"}


def test_a_record_that_is_written_later_names_the_caller_who_caused_it() -> None:
    found: list[Caller | None] = []

    async def run() -> None:
        pending = PendingRecords()
        with asked_by(Caller(uid=1000)):
            pending.add("main", "it has ended", lambda: found.append(current()), OSError("disk full"))
        await pending.settle("main")
        await pending.close()

    asyncio.run(run())
    assert found == [Caller(uid=1000)]


class KilledError(BaseException):
    """Ends an undo as if its daemon had been killed."""


def interrupt(history: History, monkeypatch: pytest.MonkeyPatch, *, after: int, number: int | None = None) -> None:
    """Begin an undo, and end it as if its daemon were killed when `after` deeds are done."""
    carry_out, count = session_undo._carry_out, itertools.count()

    async def carry_out_some(*given: Any) -> Any:
        if next(count) >= after:
            raise KilledError
        return await carry_out(*given)

    with monkeypatch.context() as patch:
        patch.setattr(session_undo, "_carry_out", carry_out_some)
        with pytest.raises(KilledError):
            undo(history, number)


def resume(sessions: Any) -> None:
    asyncio.run(session_undo.complete_interrupted(sessions))


def test_operations_on_other_names_during_an_undo_are_no_conflict(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture
) -> None:
    park(names, tip)
    sessions.afterwards = lambda: (begin(names, row_of("other")), name_it(names, "other-c", tip))
    undo(history)
    assert names.ref("parked") is None
    assert {row.branch for row in names.live()} == {"main", "other"}


def test_an_undo_ends_several_sessions_at_the_same_time(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture
) -> None:
    branches = [f"f-{number}" for number in (1, 2, 10)]
    fork(names, tip, *branches)

    async def run() -> None:
        sessions.gate.clear()
        undoing = asyncio.create_task(history.undo(None))
        while len(sessions.done) < len(branches):
            await asyncio.sleep(0)
        sessions.gate.set()
        assert (await undoing).undone.undo.startswith(", ".join(f"end the session on {branch}" for branch in branches))

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert sorted(names.refs()) == ["main", "one"]


def test_requests_on_the_same_names_wait_for_the_end_of_an_undo(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture
) -> None:
    park(names, tip)

    async def run() -> list[object]:
        sessions.gate.clear()
        undoing = asyncio.create_task(history.undo(None))
        while not sessions.done:
            await asyncio.sleep(0)
        begun = [
            asyncio.create_task(history.rename("main", "elsewhere")),
            asyncio.create_task(history.remove(["parked"])),
            asyncio.create_task(history.remove(["one"])),
        ]
        await asyncio.wait_for(begun[2], DEADLINE_S)  # the undo does not change the name `one`
        for _turn in range(20):
            await asyncio.sleep(0)
        assert [task.done() for task in begun] == [False, False, True]
        sessions.gate.set()
        await undoing
        return list(await asyncio.gather(*begun, return_exceptions=True))

    renamed, removed, _ = asyncio.run(run())
    assert isinstance(renamed, StateConflict)  # main is live again
    assert isinstance(removed, UnknownName)


def test_two_undos_at_once_undo_two_operations(
    names: Names, history: History, sessions: RecordedSessions, tip: Capture
) -> None:
    name_it(names, "two", tip)
    kept = park(names, tip)
    number = names.last_number()

    async def run() -> list[UndoFacts]:
        return await asyncio.gather(history.undo(None), history.undo(None))

    told = asyncio.run(run())
    assert sessions.done == [("restore", "main", kept.id), ("park", "main")]
    degraded = {one.undone.number: texts(one.undone.degraded) for one in told}
    assert degraded == {number: ["main: the shell's state was not restored: it lacks something"], number - 1: []}
    assert len(told) == 2


# --- several undos, and undos of undos


def checkpoint(names: Names, name: str) -> Capture:
    """Record a checkpoint of the live session on `main`."""
    [row] = names.live()
    tip = names.ref("main")
    assert tip is not None
    made = capture_of(row, parents=[tip.capture] if tip.capture else [])
    with names.change("checkpoint") as change:
        change.add(made)
        change.advance("main", made.id)
        change.create(name, Ref(kind="checkpoint", capture=made.id))
    return made


def numbers_of(names: Names, verb: str) -> list[int]:
    return [one.number for one in reversed(names.operations()) if one.verb == verb]


def test_an_undo_of_an_earlier_checkpoint_removes_only_its_name(names: Names, history: History) -> None:
    begin(names, row_of("main"))
    first, second, third = (checkpoint(names, name) for name in "abc")
    told = undo(history, numbers_of(names, "checkpoint")[1])
    assert told.undone.undo == "remove the name b"
    assert {name: ref.capture for name, ref in names.refs().items()} == {"main": third.id, "a": first.id, "c": third.id}
    undo(history)
    assert {name: ref.capture for name, ref in names.refs().items()} == {"main": second.id, "a": first.id}
    assert undo(history).undone.undo == "remove the name a"
    assert set(names.refs()) == {"main"}


def test_a_step_of_a_branch_that_has_moved_since_cannot_be_undone(names: Names, history: History) -> None:
    begin(names, row_of("main"))
    [row] = names.live()
    step = capture_of(row)
    with names.change("checkpoint") as change:  # a fork of the live branch logs this
        change.add(step)
        change.advance("main", step.id)
    checkpoint(names, "a")
    with pytest.raises(StateConflict, match="main has been changed since"):
        undo(history, numbers_of(names, "checkpoint")[0])


def test_undos_can_be_undone_again_and_again(names: Names, history: History, tip: Capture) -> None:
    for turn in range(4):
        was_there = names.ref("one") is not None
        first = undo(history, names.last_number())
        named = numbers_of(names, "checkpoint")[0]
        assert (names.ref("one") is not None) == (turn % 2 == 1) != was_there
        found = names.operation(named)
        assert found is not None
        assert found.undone == (turn % 2 == 0)
        assert first.operation is not None
        assert [one.undone for one in names.operations()[:2]] == [False, True]


def test_the_entry_of_an_undo_has_the_moves_of_its_deeds(names: Names, history: History, tip: Capture) -> None:
    kept = park(names, tip)
    told = undo(history).operation
    assert told is not None
    assert (told.sessions, set(told.moves)) == ({"main": (False, True)}, {"main", "parked"})
    ends = undo(history, told.number).operation
    assert ends is not None
    assert ends.undo == f"start main again from its capture, move main back to {tip.id[:12]}, remove the name parked"
    assert (names.live(), names.ref("main").capture) == ([], kept.id)  # type: ignore[union-attr]


# --- conflicts although no name has moved


def test_an_undo_does_not_remove_a_branch_with_a_live_session(names: Names, history: History, tip: Capture) -> None:
    asyncio.run(history.rename("main", "new"))
    number = names.last_number()
    begin(names, row_of("new"), tip.id)
    before = state(names)
    with pytest.raises(StateConflict, match="new has a running session"):
        undo(history, number)
    assert state(names) == before


def test_an_undo_does_not_restore_a_name_that_another_one_excludes(
    names: Names, history: History, tip: Capture
) -> None:
    asyncio.run(history.rename("main", "new"))
    number = names.last_number()
    begin(names, row_of("main/below"), tip.id)
    before = state(names)
    with pytest.raises(StateConflict, match="main/below exists"):
        undo(history, number)
    assert state(names) == before


def test_an_undo_of_a_rename_may_restore_a_name_that_the_new_one_excludes(
    names: Names, history: History, tip: Capture
) -> None:
    asyncio.run(history.rename("main", "a/b"))
    asyncio.run(history.rename("a/b", "a"))
    undo(history)
    assert names.ref("a") is None
    assert names.ref("a/b") is not None


# --- cost


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each decoded operation: whether the main thread decoded it."""
    seen: list[bool] = []
    decode = reading.Reader._operation

    def note(*given: Any) -> Operation:
        seen.append(is_main_thread())
        return decode(*given)

    monkeypatch.setattr(reading.Reader, "_operation", note)
    return seen


def test_an_undo_does_not_read_a_long_log_of_undone_operations(
    names: Names, history: History, tip: Capture, decoded: list[bool]
) -> None:
    name_it(names, "last", tip)
    undo(history)
    short = len(decoded)
    assert 0 < short < 10
    repeat(names, names.last_number(), undone_by=1)
    decoded.clear()
    undo(history)
    assert len(decoded) <= short


MANY = 3000


def repeat(names: Names, number: int, undone_by: int | None = None) -> None:
    """Log the operation `number` MANY times more."""
    record = names._execute("SELECT record FROM operations WHERE number = ?", (number,)).fetchone()[0]
    with names.change("many") as change:
        for _ in range(MANY):
            change._execute("INSERT INTO operations (undone_by, record) VALUES (?, ?)", (undone_by, record))


@pytest.mark.parametrize("is_last", [True, False], ids=["newest", "after those of others"])
def test_the_last_operation_of_a_branch_is_found_in_one_scan_in_a_thread(
    names: Names, history: History, tip: Capture, decoded: list[bool], *, is_last: bool
) -> None:
    begin(names, row_of("other"), tip.id)
    others = names.last_number()

    def checkpoint() -> None:
        later = capture_of(row_of("main"), parents=[tip.id])
        with names.change("checkpoint") as change:
            change.add(later)
            change.advance("main", later.id)

    for step in (lambda: repeat(names, others), checkpoint)[:: 1 if is_last else -1]:
        step()
    decoded.clear()
    told = undo(history, branch="main")
    assert (told.undone.verb, told.undone.undo) == ("checkpoint", f"move main back to {tip.id[:12]}")
    scanned = PIECE if is_last else MANY + PIECE
    assert len(decoded) <= scanned + 10
    assert decoded.count(True) < 10, "the log was read in the event loop"


def test_a_listing_of_operations_reads_the_names_once(names: Names, history: History, tip: Capture) -> None:
    for number in range(100):
        name_it(names, f"c{number}", tip)
    queries: list[str] = []
    names.refs()
    names._readers._local.db.set_trace_callback(queries.append)
    told = asyncio.run(history.operations(None))
    assert len([query for query in queries if " FROM refs" in query]) == 1
    assert {one.undo for one in told if one.moves and one.verb == "checkpoint"} >= {"remove the name c99"}
