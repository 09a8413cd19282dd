"""Taking operations back one after the other, out of order, and taking the undos back."""

import pytest

from tests.service.recorded import History, park, undo
from tests.store.test_names_store import begin, capture_of, row_of
from waypoint.model.errors import StateConflict
from waypoint.model.records import Capture, Ref
from waypoint.store.names import Names


def checkpoint(names: Names, name: str) -> Capture:
    """Of the session on `main`, which is live."""
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


def test_a_checkpoint_that_others_follow_loses_its_name_only(names: Names, history: History) -> None:
    begin(names, row_of("main"))
    first, second, third = (checkpoint(names, name) for name in "abc")
    told = undo(history, numbers_of(names, "checkpoint")[1])
    assert told.undone.undo == "remove the name b"
    assert {name: ref.capture for name, ref in names.refs().items()} == {"main": third.id, "a": first.id, "c": third.id}
    undo(history)
    assert {name: ref.capture for name, ref in names.refs().items()} == {"main": second.id, "a": first.id}
    assert undo(history).undone.undo == "remove the name a"
    assert set(names.refs()) == {"main"}


def test_a_step_of_a_branch_that_has_gone_on_is_nothing_to_take_back(names: Names, history: History) -> None:
    begin(names, row_of("main"))
    [row] = names.live()
    step = capture_of(row)
    with names.change("checkpoint") as change:  # as a fork of the live branch makes it
        change.add(step)
        change.advance("main", step.id)
    checkpoint(names, "a")
    with pytest.raises(StateConflict, match="main has been moved since"):
        undo(history, numbers_of(names, "checkpoint")[0])


def test_what_an_undo_is_followed_by_says_that_it_was_taken_back(names: Names, history: History, tip: Capture) -> None:
    """An undo is taken back, that too, and that too: each time `one` is there or not, and the log says so."""
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


def test_the_entry_of_an_undo_tells_all_that_it_has_done(names: Names, history: History, tip: Capture) -> None:
    kept = park(names, tip)
    told = undo(history).operation
    assert told is not None
    assert (told.sessions, set(told.moves)) == ({"main": (False, True)}, {"main", "parked"})
    ends = undo(history, told.number).operation
    assert ends is not None
    assert (
        ends.undo == f"start again, from what was kept, main, let main be {tip.id[:12]} again, remove the name parked"
    )
    assert (names.live(), names.ref("main").capture) == ([], kept.id)  # type: ignore[union-attr]
