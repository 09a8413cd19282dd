"""Requests of a session's own processes: they may use only the names and captures of the session's branch."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.records.test_names_store import begin_and_end, capture_of, name_it, row_of
from waypoint.branch.undo import is_from_within
from waypoint.capture.layers.layer import CaptureOptions
from waypoint.capture.sealing import placed
from waypoint.model.errors import StateConflict
from waypoint.model.records import Caller, Capture, Move, Operation, Ref
from waypoint.records.callers import asked_by
from waypoint.records.names import Names
from waypoint.records.reading import belongs_to
from waypoint.service.inside import acts, serving
from waypoint.service.inside.printed import Printed
from waypoint.service.inside.serving import serve
from waypoint.session import checkpoint as checkpointing
from waypoint.session import fork as forking
from waypoint.session.birth.rights import MAX_LIVE, check_session_count
from waypoint.session.restore import branch_of

WITHIN = Caller(branch="main")


def operation(names: Names, *refs: Ref | None, by: Caller | None = None, after_s: float = 1.0) -> Operation:
    """Return an operation on `main` that has also moved the name `cp` from the first to the last of `refs`."""
    own = names.ref("main")
    assert own is not None
    moves = {"main": Move(before=own, after=own), "cp": Move(before=refs[0], after=refs[-1])}
    return Operation(number=1, at=own.created + after_s, verb="checkpoint", moves=moves, by=by)


@pytest.fixture
def own(names: Names) -> Capture:
    found = taken(names)
    name_it(names, "own", found)
    return found


def taken(names: Names) -> Capture:
    """Record a new capture on `main`."""
    sealed = begin_and_end(names)
    with names.change("checkpoint") as change:
        found = placed(change, capture_of(row_of("main")))
        change.add(found)
    assert found.parents == [sealed.id]
    return found


def ref_of(capture: Capture) -> Ref:
    return Ref(kind="checkpoint", capture=capture.id, created=capture.created)


def other_of(names: Names, own: Capture, **changes: Any) -> Capture:
    made = msgspec.structs.replace(own, **{"id": "f" * 32, **changes})
    with names.change("checkpoint") as change:
        change.add(made)
    return made


def test_a_name_belongs_to_the_branch_on_which_its_capture_was_taken(names: Names, own: Capture) -> None:
    assert belongs_to(names, ref_of(own), "main")
    assert not belongs_to(names, ref_of(own), "nosuch")
    assert not belongs_to(names, ref_of(own), "own")  # `own` is not a branch
    assert not belongs_to(names, ref_of(other_of(names, own, branch="other", branch_created=1.0)), "main")


def move(names: Names, old: str, new: str | None) -> None:
    """Rename a branch; None: remove it."""
    ref = names.ref(old)
    assert ref is not None
    with names.change("test") as change:
        change.put(old, None)
        if new is not None:
            change.put(new, ref)


def test_captures_of_an_earlier_branch_of_the_same_name_do_not_belong_to_the_branch(names: Names, own: Capture) -> None:
    move(names, "main", None)
    later = taken(names)
    assert not belongs_to(names, ref_of(own), "main")
    assert belongs_to(names, ref_of(later), "main")


def test_a_renamed_branch_keeps_its_captures(names: Names, own: Capture) -> None:
    move(names, "main", "renamed")
    assert belongs_to(names, ref_of(own), "renamed")
    assert branch_of(names, own.id) == branch_of(names, "own") == "renamed"
    taken(names)  # on a new branch with the old name
    assert not belongs_to(names, ref_of(own), "main")
    assert branch_of(names, "own") == "renamed"
    move(names, "renamed", None)
    with pytest.raises(StateConflict, match="the branch was removed, and its name is now used for something else"):
        branch_of(names, "own")
    move(names, "main", None)
    assert branch_of(names, "own") == "main", "nothing has this name"


def test_captures_without_the_identity_of_their_branch_belong_by_time(names: Names, own: Capture) -> None:
    """Captures of earlier versions do not record the identity of their branch."""
    ref = names.ref("main")
    assert ref is not None
    move(names, "main", None)
    aged = [
        other_of(names, own, id=letter * 32, branch_created=0.0, created=at)
        for letter, at in (("e", 1.0), ("d", ref.created + 1))
    ]
    with names.change("test") as change:
        change.put("main", ref)
    assert [belongs_to(names, ref_of(one), "main") for one in aged] == [False, True]
    assert branch_of(names, aged[1].id) == "main"
    with pytest.raises(StateConflict, match="is now used for something else"):
        branch_of(names, aged[0].id)


def test_an_operation_on_names_of_another_branch_is_not_visible_inside(names: Names, own: Capture) -> None:
    other = ref_of(other_of(names, own, branch="other", branch_created=1.0))
    assert is_from_within(names, operation(names, None, ref_of(own)), "main")
    assert not is_from_within(names, operation(names, other, ref_of(own)), "main")
    assert not is_from_within(names, operation(names, ref_of(own), other), "main")
    assert is_from_within(names, operation(names, None, other, by=WITHIN), "main")


def test_operations_of_an_earlier_branch_of_the_same_name_are_not_visible_inside(names: Names, own: Capture) -> None:
    assert not is_from_within(names, operation(names, None, ref_of(own), by=WITHIN, after_s=-1.0), "main")


def test_a_fork_to_a_taken_name_does_not_wait_for_a_lock(names: Names, own: Capture) -> None:
    def turn(*_names: str) -> None:
        raise AssertionError("the fork waits for the lock of a branch")

    sessions: Any = SimpleNamespace(resources=SimpleNamespace(names=names), turn=turn)
    with pytest.raises(StateConflict, match="there is a branch of this name"):
        asyncio.run(forking.fork(sessions, "own", ["main"]))


def test_a_request_from_a_replaced_session_is_refused() -> None:
    home: Any = SimpleNamespace(sessions=SimpleNamespace(find=lambda _branch: None))
    live = live_on("main")
    refused = asyncio.run(serve(home, live, ["status"]))
    assert refused.exit == 4
    assert (
        "its session has been replaced\n  next: run the command again: the session that has replaced this one answers"
        in refused.text
    )


@pytest.mark.parametrize("verb", ["fork", "checkpoint"])
def test_a_taken_name_is_refused_without_a_transaction(
    names: Names, own: Capture, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A transaction in the event loop would wait for those of other threads."""

    def change(_verb: str) -> None:
        raise AssertionError("a transaction was begun")

    monkeypatch.setattr(names, "change", change)
    sessions: Any = SimpleNamespace(resources=SimpleNamespace(names=names))
    taken = own.id[:6]
    asked = {
        "fork": lambda: forking.fork(sessions, "own", [taken]),
        "checkpoint": lambda: checkpointing.checkpoint(sessions, "main", CaptureOptions(name=taken)),
    }
    with pytest.raises(StateConflict, match="has an id that begins with this"):
        asyncio.run(asked[verb]())


def of(uid: int, stands_for: str | None = None) -> Any:
    return SimpleNamespace(setting=SimpleNamespace(user=SimpleNamespace(uid=uid)), stands_for=stands_for)


def test_sessions_of_a_user_without_full_rights_are_bounded() -> None:
    """Starts that have not finished count, too; standbys do not."""
    rows = {True: [of(7)] * (MAX_LIVE - 6) + [of(8)] * 2, False: [of(7), of(7), of(7, stands_for="a" * 32)]}
    resources: Any = SimpleNamespace(names=SimpleNamespace(live=lambda *, ready=True: rows[ready]), trusted=9)
    steps = {
        WITHIN: "run the command outside of the session",
        Caller(uid=7): "stop some of them: 'waypoint ps' lists them",
    }
    for caller, said in ((WITHIN, "in this home"), (Caller(uid=7), "of yours")):
        free = 2 if caller is WITHIN else 4
        with asked_by(caller):
            check_session_count(resources, free)
            with pytest.raises(StateConflict, match=f"more than 256 sessions {said} would then be running") as caught:
                check_session_count(resources, free + 1)
            assert caught.value.next_step == steps[caller]
    for caller in (Caller(uid=0), Caller(uid=9), Caller(uid=8)):
        with asked_by(caller):
            check_session_count(resources, 250)
    check_session_count(resources, 1000)


def test_checkpoints_that_a_session_makes_itself_are_bounded(
    names: Names, own: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`own` is the first such checkpoint."""
    monkeypatch.setattr(acts, "MOST_NAMED", 3)
    other = begin_and_end(names, "other")
    for name in ("of-other-1", "of-other-2", "of-other-3"):
        name_it(names, name, other)
    name_it(names, "own-2", own)
    acts.check_named(names, "main", "own-3")
    name_it(names, "own-3", own)
    with pytest.raises(StateConflict, match="branch main already has 3 checkpoints") as caught:
        acts.check_named(names, "main", "own-4")
    assert caught.value.next_step == "run the command outside of the session"
    acts.check_named(names, "main", "own-3")
    acts.check_named(names, "elsewhere", "first")


def live_on(branch: str) -> Any:
    return SimpleNamespace(
        branch=branch, hooks_running=0, inside=SimpleNamespace(moving=asyncio.Lock(), places=asyncio.Semaphore(2))
    )


@pytest.mark.parametrize(("words", "at_once"), [(["checkpoint", "name"], 1), (["ps"], 2)])
def test_few_requests_of_a_session_run_at_once_and_no_other_session_waits_for_them(
    monkeypatch: pytest.MonkeyPatch, words: list[str], at_once: int
) -> None:
    asyncio.run(_few_places(monkeypatch, words, at_once))


async def _few_places(monkeypatch: pytest.MonkeyPatch, words: list[str], at_once: int) -> None:
    lives = [live_on(name) for name in ("one", "two", "three")]
    home: Any = SimpleNamespace(
        sessions=SimpleNamespace(find=lambda branch: next(live for live in lives if live.branch == branch)),
    )
    begun, may_end = list[str](), asyncio.Event()

    async def act(_home: Any, live: Any, _given: Any) -> Printed:
        begun.append(live.branch)
        await may_end.wait()
        return Printed(live.branch)

    monkeypatch.setitem(serving.ACTS, words[0], act)
    order = [lives[0]] * 8 + lives[1:]
    asked = [asyncio.ensure_future(serving.serve(home, live, words)) for live in order]
    while "three" not in begun:
        await asyncio.sleep(0)
    assert begun == ["one"] * at_once + ["two", "three"]
    may_end.set()
    assert [answer.text for answer in await asyncio.gather(*asked)] == [live.branch for live in order]


def test_a_request_whose_session_was_replaced_while_it_waited_is_refused() -> None:
    asyncio.run(_replaced_meanwhile())


async def _replaced_meanwhile() -> None:
    live = live_on("main")
    now = [live]
    sessions = SimpleNamespace(find=lambda _branch: now[-1])
    home: Any = SimpleNamespace(sessions=sessions)
    await live.inside.moving.acquire()
    asked = asyncio.ensure_future(serving.serve(home, live, ["stop"]))
    await asyncio.sleep(0)
    now.append(object())
    live.inside.moving.release()
    assert "its session has been replaced" in (await asked).text
