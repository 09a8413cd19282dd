"""Which captures `gc` removes: those that no name, no kept operation and no reader needs."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.records.test_names_store import begin, capture_of, end, name_it, row_of
from tests.waiting import DEADLINE_S
from waypoint.branch import removal
from waypoint.branch.undo import plan
from waypoint.capture.captures import Captures
from waypoint.capture.storing.base_records import capture_of as capture_of_base
from waypoint.capture.storing.base_records import record_base
from waypoint.model.errors import Failed, StateConflict, UnknownName
from waypoint.model.records import BaseRef, Capture, Point, Ref, Standing, base_of
from waypoint.records.names import Names
from waypoint.service import housekeeping
from waypoint.service.background.events import Events
from waypoint.service.background.jobs import Jobs
from waypoint.service.keeping import Keeping
from waypoint.upper.contract import Outlook, PoolUsage, Shares

NEVER, ALWAYS = float("inf"), 0.0
"""Values of `since`: NEVER keeps no operation, ALWAYS keeps all."""


@pytest.fixture
def captures(names: Names, tmp_path: Path) -> Captures:
    nothing: Any = None
    return Captures(tmp_path, nothing, names, nothing, nothing)


def chain(names: Names, count: int, branch: str = "main") -> list[Capture]:
    """Record a chain of captures whose last is the branch's tip."""
    made: list[Capture] = []
    for _ in range(count):
        row = row_of(branch)
        begin(names, row, made[-1].id if made else None)
        made.append(capture_of(row, parents=[made[-1].id] if made else []))
        end(names, row, made[-1])
    return made


def remove(captures: Captures, names: Names, since: float = NEVER, limit: int | None = None) -> list[str]:
    return [capture.id for capture in removal.remove(captures, names, since, limit)]


def move(names: Names, name: str, capture: Capture | None) -> None:
    with names.change("move") as change:
        change.put(name, Ref(kind="checkpoint", capture=capture.id) if capture else None)


def test_a_name_keeps_its_capture_and_only_the_records_of_the_ancestors(names: Names, captures: Captures) -> None:
    first, named, third, tip = chain(names, 4)
    name_it(names, "good", named)
    assert remove(captures, names) == [first.id, third.id]
    assert names.captures() == [first, named, third, tip]
    assert names.removed() == {first.id, third.id}
    assert names.disposable() >= {first.id, first.tree, third.id, third.tree}
    assert names.resolve("good") == named
    assert names.find(first.id) == first
    with pytest.raises(UnknownName, match="gc"):
        names.resolve(first.id)
    assert remove(captures, names) == []


def test_a_base_stays_while_a_name_a_session_or_a_capture_needs_it(names: Names, captures: Captures) -> None:
    base, ref = capture_of_base("b" * 32), BaseRef(capture="b" * 32, source="/srv", created=1.0)
    with names.change("base create") as change:
        record_base(change, base, "b" * 64)
        change.put_base("deb", ref)
    assert remove(captures, names) == []
    row = row_of("main")
    row = msgspec.structs.replace(row, setting=msgspec.structs.replace(row.setting, base=base_of(base.id)))
    with names.change("base rm") as change:
        change.reserve(row)
        change.put_base("deb", None)
    assert remove(captures, names) == []
    with names.change("start") as change:
        change.ready(row, None)
    on_it = capture_of(row)
    end(names, row, on_it)
    assert remove(captures, names) == []
    move(names, "main", None)
    assert remove(captures, names, limit=1) == [on_it.id]
    assert remove(captures, names) == [base.id]
    with names.change("base create") as change:
        record_base(change, base, "b" * 64)
        change.put_base("deb", ref)
    captures.drop(base)  # by the gc that has removed it before: it would fail if it did not leave the files
    with pytest.raises(UnknownName), captures.hold(base):
        pass
    captures.readmit(base.id)
    assert names.names_with_bases([base.id]) == {base.id: ["deb"]}
    assert (names.captures(), names.removed(), names.bases()) == ([base], set(), {"deb": ref})


def test_a_policy_keeps_the_last_captures_of_each_branch_and_of_each_day(names: Names, captures: Captures) -> None:
    day_s, noon = 86400.0, 1_800_000_000 - 1_800_000_000 % 86400 + time.timezone + 43200.0

    def taken(branch: str, *moments: float) -> list[str]:
        made = list[Capture]()
        with names.change("checkpoint") as change:
            for moment in moments:
                made.append(capture_of(row_of(branch), parents=[one.id for one in made[-1:]]))
                made[-1] = msgspec.structs.replace(made[-1], created=moment, branch_created=len(branch))
                change.add(made[-1])
        return [one.id for one in made]

    one, early, late, two = taken("main", noon - 9 * day_s, noon - day_s - 60, noon - day_s, noon)
    (other,) = taken("other", noon - 20 * day_s)
    renamed = names.captures_of([two])[two]
    with names.change("rename") as change:  # the last one was taken after the branch was renamed
        change.forget_captures([two])
        change.add(msgspec.structs.replace(renamed, branch="new-name"))

    def removable(last: int, daily: int) -> list[str]:
        return removal.survey(names, NEVER, removal.Policy(last, daily)).removable

    assert removable(0, 0) == [other, one, early, late, two]
    assert removable(2, 0) == [one, early]
    assert removable(0, 2) == [one, early]
    assert removable(0, 3) == [early]
    assert removable(3, 1) == [one]
    move(names, "good", names.capture(two))
    kept = removal.survey(names, NEVER, removal.Policy(2, 1)).kept
    assert kept == {two: {"name", "last", "daily"}, late: {"last"}, other: {"last", "daily"}}
    assert [one.id for one in removal.remove(captures, names, NEVER, policy=removal.Policy(2, 1))] == [one, early]
    assert removable(4, 0) == [], "removed captures do not count"


def test_records_without_a_kept_descendant_are_removed(names: Names, captures: Captures) -> None:
    main, other = chain(names, 3), chain(names, 2, "other")
    move(names, "main", None)
    assert remove(captures, names) == [one.id for one in [*main, other[0]]]
    assert names.captures() == other
    assert names.removed() == {other[0].id}
    move(names, "other", None)
    assert remove(captures, names) == [other[1].id]
    assert names.captures() == []
    assert names.removed() == set()


def test_a_kept_operation_keeps_the_captures_that_its_undo_needs(names: Names, captures: Captures) -> None:
    first, second = chain(names, 2)
    name_it(names, "x", first)
    move(names, "x", second)
    between = time.time()
    move(names, "x", None)
    assert remove(captures, names, ALWAYS) == []
    assert remove(captures, names, between) == [first.id], "only the last operation is kept, which needs the second"
    last, *older = names.operations()[1:]
    assert plan(names.ref, last).names == {"x": Ref(kind="checkpoint", capture=second.id)}
    for operation in older:
        with pytest.raises(StateConflict, match="older than"):
            plan(names.ref, operation)


def test_a_kept_restore_keeps_the_capture_of_the_replaced_session(names: Names, captures: Captures) -> None:
    (tip,) = chain(names, 1)
    old, new = row_of("main"), row_of("main")
    aside = capture_of(old)
    begin(names, old, tip.id)
    with names.change("restore") as change:
        change.add(aside)
        change.reserve(new, beside=True)
        change.forget(old)
        change.ready(new, tip.id)
        change.replace_session("main", aside.id)
    assert remove(captures, names, ALWAYS) == []
    assert remove(captures, names) == [aside.id]


def test_a_removal_is_an_entry_in_the_log(names: Names, captures: Captures) -> None:
    chain(names, 3)
    assert remove(captures, names, ALWAYS) == []
    before = names.last_number()
    assert len(remove(captures, names)) == 2
    (entry,) = names.operations(1)
    said = f"removed 2 captures, operations before {before + 1} can no longer be undone"
    assert (entry.verb, entry.note, entry.moves) == ("gc", said, {})
    remove(captures, names, ALWAYS)
    assert names.last_number() == before + 1, "an entry without a removal"


def test_a_capture_that_is_held_stays_and_a_removed_one_cannot_be_held(names: Names, captures: Captures) -> None:
    first, second, _ = chain(names, 3)
    with captures.hold(first):
        assert remove(captures, names) == [second.id]
        with pytest.raises(UnknownName, match="gc"), captures.hold(second):
            pass
        assert names.find(first.id) == first
    assert remove(captures, names) == [first.id]


def test_a_failed_removal_removes_nothing(names: Names, captures: Captures, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = chain(names, 2)

    def fail(*_: object) -> None:
        raise Failed("write", "names.db", "No space left on device", "")

    with monkeypatch.context() as broken:
        broken.setattr(captures, "add_disposable", fail)
        with pytest.raises(Failed):
            remove(captures, names)
    assert names.removed() == set()
    with captures.hold(first):
        assert remove(captures, names) == []
    assert remove(captures, names) == [first.id]


SHORT, ROOM = Outlook(free_bytes=10, headroom_bytes=20), Outlook(free_bytes=20, headroom_bytes=20)


def home_with(names: Names, captures: Captures, looks: list[Outlook]) -> Any:
    """A fake home whose pool reports `looks`, one after the other."""
    answers = iter(looks)
    pool = SimpleNamespace(settle=lambda: None, outlook=lambda: next(answers), unique_bytes=lambda: 0)
    captures._area = captures._area._replace(pool=pool)
    captures.images.is_hot = lambda _: True
    return SimpleNamespace(
        names=names,
        captures=captures,
        pool=pool,
        due_for_removal={},
        keeping=Keeping(-1.0, removal.NO_POLICY, 1 << 30, 1 << 30),
        undo_measured=None,
        storing=SimpleNamespace(due=list, store_now=lambda _: False),
        sessions=SimpleNamespace(resources=SimpleNamespace(templates=SimpleNamespace(forget=lambda _: None))),
    )


def test_on_a_short_disk_the_oldest_captures_are_removed_until_there_is_space(
    names: Names, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [one.id for one in chain(names, 2 * housekeeping.AT_ONCE + 5)]
    dropped: list[str] = []
    monkeypatch.setattr(captures, "drop", lambda capture: dropped.append(capture.id))
    home = home_with(names, captures, [*4 * [SHORT], ROOM, ROOM, SHORT, SHORT, *3 * [ROOM]])
    reported: list[dict[str, int]] = []
    job: Any = SimpleNamespace(report=lambda **numbers: reported.append(numbers))

    def make_room(keep_s: float) -> int:
        return housekeeping._Work(home, job, home.keeping._replace(operations_s=keep_s)).make_room()

    assert make_room(3600.0) == 0, "a kept operation keeps its captures on a short disk, too"
    assert [one.verb for one in names.operations() if one.verb == "gc"] == []
    assert make_room(-1.0) == 2 * housekeeping.AT_ONCE
    assert dropped == made[: 2 * housekeeping.AT_ONCE]
    whole = housekeeping.AT_ONCE
    assert reported == [{"items": number, "items_total": whole} for number in range(whole + 1)] * 2
    assert make_room(-1.0) == 4, "all but the branch's tip"
    said = [one.note.partition(",")[0] for one in names.operations() if one.verb == "gc"]
    assert said == ["removed 4 captures", "removed 8 captures", "removed 8 captures"]
    assert make_room(-1.0) == 0, "a capture was removed without need"


def test_on_a_short_disk_stored_captures_are_evicted_when_nothing_can_be_removed(
    names: Names, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = chain(names, 3)
    for number, capture in enumerate(kept):
        name_it(names, f"kept-{number}", capture)
    with names.change("ingest") as change:
        for capture in kept[1:]:
            change.set_standing(capture.id, Standing(image="a" * 64, durable=True))
    evicted: list[str] = []
    monkeypatch.setattr(captures, "evict", lambda one: one.id not in evicted and not evicted.append(one.id))
    home, job = home_with(names, captures, 4 * [SHORT]), SimpleNamespace()
    assert housekeeping._Work(home, job, home.keeping).make_room() == 2
    assert evicted == [kept[1].id, kept[2].id]
    home = home_with(names, captures, [SHORT, SHORT, ROOM])
    evicted.clear()
    housekeeping._Work(home, job, home.keeping).make_room()
    assert evicted == [kept[1].id], "one was enough"


def test_above_the_budget_stored_captures_are_evicted_the_least_recently_used_first(
    names: Names, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = chain(names, 4)
    with names.change("ingest") as change:
        for capture in kept[:3]:
            change.set_standing(capture.id, Standing(image="a" * 64, durable=True))
    evicted: list[str] = []
    monkeypatch.setattr(captures, "evict", lambda one: one.id not in evicted and not evicted.append(one.id))
    home = home_with(names, captures, [ROOM] * 9)
    sessions = {"main": 0}
    home.pool.unique_bytes = lambda: 60 - 10 * len(evicted) + sessions["main"]
    home.pool.measure = lambda names, _limit_s: PoolUsage(
        {name: Shares(0, sessions["main"]) for name in names}, {}, home.pool.unique_bytes()
    )
    monkeypatch.setattr(captures.images, "make_hot", lambda _: None)
    (captures._area.hot.folder / kept[0].id).mkdir()
    with captures.hold(kept[0]):
        pass
    base = captures.usage([]).copies_bytes() - 60
    begin(names, row_of("main"), kept[-1].id)
    sessions["main"] = 1 << 40

    def work(budget: int) -> housekeeping._Work:
        return housekeeping._Work(home, SimpleNamespace(), home.keeping._replace(hot_bytes=budget))

    assert work(base + 45).make_room() == 2
    assert evicted == [kept[1].id, kept[2].id], "the first was used last, and what a session has does not count"
    assert work(0).make_room() == 1
    assert evicted == [kept[1].id, kept[2].id, kept[0].id], "the last is not in the store"


def test_a_failed_removal_from_disk_is_repeated_later(
    names: Names, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removal fails while the pool is full, until the session that has filled it ends."""
    made = [one.id for one in chain(names, 3)][:2]
    tried: list[str] = []

    def drop(capture: Capture) -> None:
        tried.append(capture.id)
        if len(tried) <= 2 * len(made):  # the first job tries each capture twice
            raise Failed("remove the upper tree", capture.id, "No space left on device", "")

    monkeypatch.setattr(captures, "drop", drop)
    monkeypatch.setattr(housekeeping, "RELIEVE_S", 0.0)
    home = home_with(names, captures, [SHORT, *5 * [ROOM]])
    home.relieve_later = lambda: housekeeping.relieve(home)

    async def relieve() -> None:
        home.jobs = Jobs(Events(asyncio.get_running_loop()))
        housekeeping.relieve(home)
        while any(job.state == "running" for job in home.jobs.all()) or home.due_for_removal:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(relieve(), DEADLINE_S))
    assert tried == 3 * made
    assert [one.note.partition(",")[0] for one in names.operations() if one.verb == "gc"] == ["removed 2 captures"]


def test_a_removal_with_a_limit_begins_with_the_oldest(names: Names, captures: Captures) -> None:
    made = [one.id for one in chain(names, 5)]
    assert remove(captures, names, limit=2) == made[:2]
    assert remove(captures, names, limit=1) == made[2:3]
    assert {one.id for one in names.captures()} == set(made)


def test_a_capture_that_is_named_during_the_survey_is_not_removed(
    names: Names, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = chain(names, 3)
    surveys: list[object] = []
    survey = removal.survey
    writes = [lambda: move(names, "kept", second)]

    def survey_then_write(*given: Any) -> removal.Survey:
        surveys.append(given[0])
        found = survey(*given)
        if writes:
            with ThreadPoolExecutor(1) as other:
                other.submit(writes.pop()).result(DEADLINE_S)
        return found

    monkeypatch.setattr(removal, "survey", survey_then_write)
    assert [one.id for one in removal.remove(captures, names, NEVER)] == [first.id]
    assert len(surveys) == 2, "no second survey after another's write"
    assert [one.id for one in removal.remove(captures, names, NEVER)] == []
    assert surveys[2:] == [names], "the survey was made inside the transaction"


def test_the_last_points_of_a_branch_keep_their_captures(
    names: Names, captures: Captures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "MOST_POINTS", 2)
    first, second, third, tip = chain(names, 4)
    for capture in (first, second, second, third):
        with names.change("point") as change:
            change.point = Point(capture=capture.id, branch_created=1.0, label="a prompt")
    found = removal.survey(names, names.operations()[3].at)
    assert found.removable == [first.id]
    assert {second.id, third.id, tip.id} <= found.kept.keys()
    assert remove(captures, names) == [first.id, second.id, third.id], "a point is kept as long as an operation"
