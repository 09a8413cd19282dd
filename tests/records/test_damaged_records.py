"""Damaged records of names.db are reported with the record and the home."""

import contextlib
import sqlite3
from collections.abc import Callable

import pytest

from tests.records.test_names_store import begin, capture_of, end, name_it, row_of
from waypoint.model.errors import StoreDamaged
from waypoint.model.records import Capture, Standing
from waypoint.records.names import Names
from waypoint.records.reading import Reader

DAMAGES = [b'{"id": "', b"[]", b'{"id": "\xff\xfe"}', b""]
READS: dict[str, tuple[str, str, Callable[[Names, Capture], object]]] = {
    "a capture": ("captures", "capture {id}", lambda names, tip: names.capture(tip.id)),
    "captures by their ids": ("captures", "capture {id}", lambda names, tip: names.captures_of([tip.id])),
    "all captures": ("captures", "capture {id}", lambda names, tip: names.captures()),
    "the graph": ("captures", "capture {id}", lambda names, tip: list(names.iter_links())),
    "a branch": ("refs", "the name main", lambda names, tip: names.resolve("main")),
    "all names": ("refs", "the name", lambda names, tip: names.refs()),
    "live sessions": ("live", "the session on running", lambda names, tip: names.live()),
    "an operation": ("operations", "operation 1", lambda names, tip: names.operation(1)),
    "the log": ("operations", "operation", lambda names, tip: names.operations()),
    "what can be undone": ("operations", "operation", lambda names, tip: names.last_to_undo(lambda _: True)),
}


@pytest.mark.parametrize("read", READS)
def test_the_error_names_the_damaged_record(names: Names, read: str) -> None:
    row = row_of("main")
    begin(names, row)
    tip = capture_of(row)
    end(names, row, tip)
    name_it(names, "named", tip)
    begin(names, row_of("running"))
    table, what, look = READS[read]
    assert look(names, tip)
    for damage in DAMAGES:
        with contextlib.closing(sqlite3.connect(names.path)) as db, db:
            db.execute(f"UPDATE {table} SET record = ?", (damage,))
        with pytest.raises(StoreDamaged) as raised:
            look(names, tip)
        assert raised.value.on.startswith(what.format(id=tip.id))
        assert raised.value.on.endswith(f" of the home {names.path.parent}")
        assert "its record is damaged" in raised.value.said
        assert f"waypoint --home {names.path.parent} daemon stop" in raised.value.next_step
        assert raised.value.exit_code == 10


def test_a_transaction_reports_a_damaged_record(names: Names) -> None:
    begin(names, row_of("main"))
    with contextlib.closing(sqlite3.connect(names.path)) as db, db:
        db.execute("UPDATE refs SET record = ?", (b"{",))
    with pytest.raises(StoreDamaged, match="the name main"), names.change("rename") as change:
        change.check_free("main", "branch")


HOSTILE: dict[str, Callable[[Reader], object]] = {
    "captures SET record = json_set({record}, '$.id', ?)": Reader.captures,
    "captures SET record = json_set({record}, '$.parents[0]', ?)": lambda names: list(names.iter_links()),
    "captures SET id = ?": lambda names: list(names.iter_links()),
    "captures SET record = json_set({record}, '$.layers.files.tree', ?)": Reader.captures,
    "captures SET record = json_set({record}, '$.branch', ?)": Reader.captures,
    "refs SET record = json_set({record}, '$.capture', ?)": Reader.refs,
    "refs SET name = ? WHERE name = 'main'": Reader.refs,
    "live SET record = json_set({record}, '$.session', ?)": Reader.live,
    "live SET record = json_set({record}, '$.tree', ?)": Reader.live,
    "doomed SET id = ?": Reader.disposable,
    "standings SET capture = ?": Reader.removed,
}
"""Changes of names.db as in a home from elsewhere, and a method that reads the changed row."""


def test_an_id_or_a_name_that_is_a_path_is_damage(names: Names) -> None:
    row = row_of("main")
    begin(names, row)
    end(names, row, tip := capture_of(row))
    begin(names, row_of("running"))
    with names.change("test") as change:
        change.set_standing(tip.id, Standing(removed=True))
    accepted = []
    with contextlib.closing(sqlite3.connect(names.path, isolation_level=None)) as db:
        reader = Reader(db.execute, names.path)
        for change_of, read in HOSTILE.items():
            assert read(reader)
            for value in ("../../outside", "/", "a" * 31 + "/", "A\x1b[2J", ""):
                db.execute("BEGIN")
                db.execute(f"UPDATE {change_of.format(record='CAST(record AS TEXT)')}", (value,))
                with contextlib.suppress(StoreDamaged):
                    accepted.append((change_of, value, read(reader)))
                db.execute("ROLLBACK")
    assert accepted == []
