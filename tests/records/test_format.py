"""Migration of a names.db of an earlier format: it keeps the meaning of the content, and a failure changes nothing."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from waypoint.branch import undo
from waypoint.model.errors import Failed, StateConflict, StoreDamaged
from waypoint.model.records import Deed, Operation, Standing
from waypoint.records import format
from waypoint.records.names import Names

KEPT = Path(__file__).parent / "kept"
SAID: dict[str, Any] = json.loads((KEPT / "names-2.json").read_text())
"""The content of names-2.db, as the last version with format 2 read it: records, and how it would undo each operation.

The file is from a home in use: sessions were checkpointed, forked, restored in place (wholly and only in part), parked
and discarded; names were moved; some operations were undone, and some undos. One start had not finished.
"""


NEWER = {"by": None, "note": "", "expired": False, "degraded": [], "applied": None, "point": None}
"""Fields that operations of earlier formats do not have."""
NEW_STANDING = {"removed": False, "proof": None, "changes": None}
"""Fields that standings of earlier formats do not have."""


def with_later_fields(captures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the captures the defaults of fields that later versions have added."""
    for one in captures:
        one |= {"folder": "", "branch_created": 0.0, "automatic": False}
        one["layers"] = {kind: layer for kind, layer in one["layers"].items() if layer is not None}
    return captures


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return Path(shutil.copy(KEPT / "names-2.db", tmp_path / "names.db"))


@pytest.fixture
def migrated(kept: Path) -> Iterator[Names]:
    names = Names(kept)
    yield names
    names.close()


def format_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        (found,) = db.execute("PRAGMA user_version").fetchone()
        return int(found)


def content_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: db.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in tables}


def plan_of(ref: undo.Lookup, operation: Operation) -> dict[str, object]:
    """Return the plan of the operation's undo as earlier versions printed it: without the capture from which a session
    starts again (the tip of its branch), and without unchanged names.
    """
    try:
        found = undo.plan(ref, operation)
    except StateConflict as error:
        return {"refused": error.said}
    names = {name: before for name, before in found.names.items() if before != ref(name)}
    return {
        "deeds": [_deed_before(ref, deed) for deed in found.deeds],
        "names": msgspec.to_builtins(names),
        "words": found.words,
    }


def _deed_before(ref: undo.Lookup, deed: Deed) -> list[str | None]:
    if deed.act == "start":
        tip = ref(deed.branch)
        assert tip is not None
        assert tip.capture == deed.capture
        deed = deed._replace(capture=None)
    return list(deed)


def only_names(found: dict[str, Any], said: dict[str, Any]) -> dict[str, str]:
    """Return the words of the plans that differ, by number. Earlier versions refused to undo these operations because a
    branch had moved since; now the undo does not change that branch.
    """
    others = {number: plan for number, plan in found.items() if {**plan, "words": ""} != {**said[number], "words": ""}}
    assert all(said[number]["refused"].endswith("has been changed since") for number in others)
    assert all(not plan["deeds"] for plan in others.values())
    return {number: plan["words"] for number, plan in others.items()}


def test_names_captures_and_sessions_of_format_2_are_unchanged(migrated: Names) -> None:
    assert msgspec.to_builtins(migrated.refs()) == SAID["refs"]
    assert json.loads(msgspec.json.encode(migrated.captures())) == with_later_fields(SAID["captures"])
    assert msgspec.to_builtins(migrated.live()) == SAID["live"]
    assert msgspec.to_builtins(migrated.live(ready=False)) == SAID["unready"]
    assert (len(SAID["refs"]), len(SAID["captures"]), len(SAID["live"]), len(SAID["unready"])) == (17, 22, 7, 1)


def test_operations_of_format_2_are_unchanged(migrated: Names) -> None:
    found = json.loads(msgspec.json.encode(migrated.operations()))
    kinds = set()
    for operation, entry in zip(found, SAID["operations"], strict=True):
        was = dict(entry)
        replaced, only, carried = was.pop("replaced"), was.pop("only"), was.pop("carried")
        branches = [branch for branch, states in was["sessions"].items() if states == [True, True]]
        aside = {branch: {"capture": replaced, "only": only} for branch in branches}
        assert bool(aside) == (replaced is not None)
        assert operation == {**was, "aside": aside, **NEWER}
        kinds.add((bool(aside), only, bool(carried), was["undoes"] is not None, was["undone"]))
    assert {(True, None), (True, "files"), (True, "shell")} <= {kind[:2] for kind in kinds}
    assert (False, None, True, True, False) in kinds
    assert (False, None, False, True, True) in kinds


@pytest.mark.parametrize("at_once", [False, True])
def test_plans_of_undos_are_unchanged(migrated: Names, *, at_once: bool) -> None:
    ref = migrated.refs().get if at_once else migrated.ref
    found = {str(operation.number): plan_of(ref, operation) for operation in migrated.operations()}
    assert only_names(found, SAID["plans"]) == {
        "3": "move one back to 68ee4febfe0a",
        "20": "remove the name files-c",
        "23": "remove the name shell-c",
    }
    assert {deed[0] for plan in found.values() for deed in plan.get("deeds", [])} == {"end", "start", "restore"}


def test_the_order_of_undos_is_unchanged(migrated: Names) -> None:
    carried = {part for operation in SAID["operations"] for part in operation.get("carried", [])}
    order = [
        one["number"]
        for one in SAID["operations"]
        if not one["undone"] and one["undoes"] is None and one["number"] not in carried
    ]
    found = []
    while (operation := migrated.last_to_undo(lambda _: True)) is not None:
        found.append(operation.number)
        with migrated.change("undo") as change:
            change.undo(operation.number)
    assert found == order
    assert len(found) == 29


def test_a_home_of_format_3_is_unchanged(tmp_path: Path) -> None:
    """The file is from a home that was used like that of format 2. It also has a standing and a claim."""
    said: dict[str, Any] = json.loads((KEPT / "names-3.json").read_text())
    del said["claims"]
    said["captures"] = with_later_fields(said["captures"])
    said["operations"] = [{**one, **NEWER} for one in said["operations"]]
    said["standings"] = {capture: {**one, **NEW_STANDING} for capture, one in said["standings"].items()}
    names = Names(Path(shutil.copy(KEPT / "names-3.db", tmp_path / "names.db")))
    found = content_since_3(names)
    others = only_names(found.pop("plans"), said.pop("plans"))
    assert others == {"3": "remove the name second", "6": "remove the name third"}
    assert json.loads(msgspec.json.encode(found)) == said
    assert (len(said["refs"]), len(said["captures"]), len(said["unready"])) == (10, 14, 1)
    names.close()


def test_a_home_of_format_4_is_unchanged(tmp_path: Path) -> None:
    """The file is from a home that was used like that of format 2."""
    said: dict[str, Any] = json.loads((KEPT / "names-4.json").read_text())
    del said["claims"]
    said["captures"] = with_later_fields(said["captures"])
    said["operations"] = [
        {**one, **{name: value for name, value in NEWER.items() if name != "by"}} for one in said["operations"]
    ]
    said["standings"] = {capture: {**one, **NEW_STANDING} for capture, one in said["standings"].items()}
    names = Names(Path(shutil.copy(KEPT / "names-4.db", tmp_path / "names.db")))
    found = {**content_since_3(names), "doomed": sorted(names.disposable()), "identity": names.identity()}
    assert only_names(found.pop("plans"), said.pop("plans")) == {
        "3": "move one back to 06efbd7f5150",
        "4": "remove the name two",
        "11": "remove the name files",
    }
    assert json.loads(msgspec.json.encode(found)) == said
    assert (len(said["operations"]), len(said["doomed"]) > 0, names.removed(), names.first_kept()) == (
        16,
        True,
        set(),
        0,
    )
    names.close()


def content_since_3(names: Names) -> dict[str, Any]:
    """Return the content of a file of format 3 or later."""
    return {
        "refs": names.refs(),
        "captures": names.captures(),
        "live": names.live(),
        "unready": names.live(ready=False),
        "operations": names.operations(),
        "standings": {capture.id: names.standing(capture.id) for capture in names.captures()},
        "plans": {str(operation.number): plan_of(names.ref, operation) for operation in names.operations()},
        "last_to_undo": undo_number(names),
    }


def undo_number(names: Names) -> int:
    operation = names.last_to_undo(lambda _: True)
    assert operation is not None
    return operation.number


def test_each_database_has_an_identity_of_its_own(migrated: Names, tmp_path: Path) -> None:
    other = Names(tmp_path / "other.db")
    assert migrated.identity().opened == other.identity().opened == 0
    assert migrated.identity().id != other.identity().id
    other.close()


def test_new_tables_are_empty_after_a_migration(migrated: Names) -> None:
    assert migrated.disposable() == set()
    assert migrated.intents() == []
    assert {migrated.standing(capture.id) for capture in migrated.captures()} == {Standing()}


def test_a_new_file_has_the_tables_of_a_migrated_one(kept: Path, tmp_path: Path) -> None:
    def tables(path: Path) -> list[tuple[object, ...]]:
        Names(path).close()
        assert format_of(path) == format.FORMAT == 9
        with contextlib.closing(sqlite3.connect(path)) as db:
            return db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()

    assert tables(kept) == tables(tmp_path / "new.db")


def test_a_migrated_file_opens_again(kept: Path) -> None:
    Names(kept).close()
    before = content_of(kept)
    Names(kept).close()
    assert content_of(kept) == before


_CRASH = """
import os, signal, sys
from pathlib import Path
from waypoint.records import format
from waypoint.records.names import Names
step = format.MIGRATIONS[2]
def crash(db):
    step(db)
    os.kill(os.getpid(), signal.SIGKILL)
format.MIGRATIONS[2] = crash
Names(Path(sys.argv[1]))
"""


def test_a_crash_during_a_migration_leaves_the_earlier_format(kept: Path) -> None:
    before = content_of(kept)
    done = subprocess.run([sys.executable, "-c", _CRASH, str(kept)], cwd=KEPT.parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (format_of(kept), content_of(kept)) == (2, before)
    Names(kept).close()
    assert format_of(kept) == format.FORMAT


def _fail(error: Exception) -> Callable[[sqlite3.Connection], None]:
    def step(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM operations")
        raise error

    return step


def full_disk() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (full_disk(), Failed),
        (RuntimeError("a bug"), RuntimeError),
    ],
)
def test_a_migration_that_fails_changes_nothing(
    kept: Path, error: Exception, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content_of(kept)
    monkeypatch.setitem(format.MIGRATIONS, 2, _fail(error))
    with pytest.raises(raised, match=str(error)):
        Names(kept)
    assert (format_of(kept), content_of(kept)) == (2, before)


@pytest.mark.parametrize("record", [b"", b"{", b'{"carried": "x"}', b'{"verb": "\xff"}', b"[]"])
def test_a_damaged_record_stops_the_migration_and_changes_nothing(kept: Path, record: bytes) -> None:
    with contextlib.closing(sqlite3.connect(kept)) as db, db:
        db.execute("UPDATE operations SET record = ? WHERE number = 3", (record,))
    before = content_of(kept)
    with pytest.raises(StoreDamaged, match="a record in it is damaged") as caught:
        Names(kept)
    assert caught.value.on == str(kept)
    assert (format_of(kept), content_of(kept)) == (2, before)


def test_migrations_run_one_after_the_other(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for number in (8, 9):
        monkeypatch.setitem(format.MIGRATIONS, number, lambda _db, number=number: taken.append(number))
    monkeypatch.setattr(format, "FORMAT", 10)
    Names(kept).close()
    assert (taken, format_of(kept)) == ([8, 9], 10)


@pytest.mark.parametrize("number", [1, format.FORMAT + 1])
def test_an_unknown_format_is_refused_and_left_alone(kept: Path, number: int) -> None:
    with contextlib.closing(sqlite3.connect(kept)) as db:
        db.execute(f"PRAGMA user_version = {number}")
    before = content_of(kept)
    with pytest.raises(StoreDamaged, match=f"format is {number},") as caught:
        Names(kept)
    assert caught.value.next_step == "use the version of Waypoint that made it"
    assert content_of(kept) == before
    assert not os.path.exists(f"{kept}-wal")
