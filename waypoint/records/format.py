"""The format of names.db: its tables, its number (`PRAGMA user_version`), and the migrations from earlier formats."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from waypoint.model.errors import StoreDamaged
from waypoint.model.ids import random_hex
from waypoint.records.failures import damaged, sqlite_errors

FIRST = 2
"""The earliest format that can be migrated: no homes with earlier ones exist."""

_FIRST_TABLES = (
    "CREATE TABLE refs (name TEXT PRIMARY KEY, capture TEXT, record BLOB NOT NULL) WITHOUT ROWID",
    "CREATE INDEX refs_of_capture ON refs (capture)",
    "CREATE TABLE captures (id TEXT PRIMARY KEY, created REAL NOT NULL, record BLOB NOT NULL) WITHOUT ROWID",
    """CREATE TABLE live (
    session TEXT PRIMARY KEY, branch TEXT NOT NULL, ready INTEGER NOT NULL, record BLOB NOT NULL) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX one_session_on_a_branch ON live (branch) WHERE ready",
    """CREATE TABLE operations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, undone_by INTEGER, record BLOB NOT NULL)""",
)


def _to_3(db: sqlite3.Connection) -> None:
    """From format 2 to 3. An operation's record has the captures of replaced sessions by branch (`aside`), instead of
    one for the whole operation (`replaced`, `only`). An undo and its parts have the undo's number in the new column
    `operations.undo`, instead of a list `carried` in the undo.

    New tables: `standings`, what has changed about captures since they were taken; `claims`, which was never used.
    """
    db.execute("CREATE INDEX captures_by_time ON captures (created DESC, id)")
    db.execute("CREATE TABLE standings (capture TEXT PRIMARY KEY, image TEXT, durable INTEGER NOT NULL) WITHOUT ROWID")
    db.execute("CREATE TABLE claims (id TEXT PRIMARY KEY, purpose TEXT NOT NULL, since REAL NOT NULL) WITHOUT ROWID")
    db.execute("ALTER TABLE operations ADD COLUMN undo INTEGER")
    for number, record in db.execute("SELECT number, record FROM operations ORDER BY number").fetchall():
        entry = msgspec.json.decode(record, type=dict[str, object])
        carried = msgspec.convert(entry.pop("carried", []), list[int])
        aside = {"capture": entry.pop("replaced", None), "only": entry.pop("only", None)}
        sessions = msgspec.convert(entry.get("sessions", {}), dict[str, tuple[bool, bool]])
        replaced = [branch for branch, states in sessions.items() if all(states)]
        entry["aside"] = dict.fromkeys(replaced if aside["capture"] else [], aside)
        db.execute("UPDATE operations SET record = ? WHERE number = ?", (msgspec.json.encode(entry), number))
        if entry.get("undoes") is not None:
            for part in [number, *carried]:
                db.execute("UPDATE operations SET undo = ? WHERE number = ?", (number, part))
    db.execute("CREATE INDEX to_undo ON operations (number) WHERE undone_by IS NULL AND undo IS NULL")


def _to_4(db: sqlite3.Connection) -> None:
    """From format 3 to 4. New tables: `identity`, one row, a copy of which is in the marks of the home's folders;
    `doomed`, the ids of the things that the sweep may remove from these folders (marks.py). Left-overs of earlier
    crashes are kept.
    """
    db.execute("CREATE TABLE identity (id TEXT NOT NULL, opened INTEGER NOT NULL)")
    db.execute("INSERT INTO identity VALUES (?, 0)", (random_hex(16),))
    db.execute("CREATE TABLE doomed (id TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID")


def _to_5(db: sqlite3.Connection) -> None:
    """From format 4 to 5. New columns: `standings.removed`, whether a capture's content was removed from the disk;
    `identity.first_kept`, the number of the first operation that can still be undone.
    """
    db.execute("ALTER TABLE standings ADD COLUMN removed INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE identity ADD COLUMN first_kept INTEGER NOT NULL DEFAULT 0")


def _to_6(db: sqlite3.Connection) -> None:
    """From format 5 to 6. A capture's record has degradations (`{code, subject, detail}`) instead of sentences, in
    `degraded` and in `layers.programs.lost`. A layer that a capture lacks is not in its record.

    New table: `intents`, the undos that have begun and are not in the log yet.
    """
    db.execute("CREATE TABLE intents (number INTEGER PRIMARY KEY AUTOINCREMENT, record BLOB NOT NULL)")

    def typed(record: dict[str, object], name: str) -> None:
        lines = msgspec.convert(record.get(name) or [], list[str])
        record[name] = [{"code": "earlier", "detail": line} for line in lines]

    for capture, record in db.execute("SELECT id, record FROM captures").fetchall():
        entry = msgspec.json.decode(record, type=dict[str, object])
        typed(entry, "degraded")
        layers = msgspec.convert(entry.get("layers"), dict[str, object])
        if isinstance(programs := layers.get("programs"), dict):
            typed(programs, "lost")
        entry["layers"] = {kind: layer for kind, layer in layers.items() if layer is not None}
        db.execute("UPDATE captures SET record = ? WHERE id = ?", (msgspec.json.encode(entry), capture))


def _to_7(db: sqlite3.Connection) -> None:
    """From format 6 to 7. New column: `standings.proof`, the result of the last `waypoint prove` of a capture."""
    db.execute("ALTER TABLE standings ADD COLUMN proof BLOB")


def _to_8(db: sqlite3.Connection) -> None:
    """From format 7 to 8. New column: `standings.changes`, how much a capture has changed since its parent."""
    db.execute("ALTER TABLE standings ADD COLUMN changes BLOB")


def _to_9(db: sqlite3.Connection) -> None:
    """From format 8 to 9. New table: `bases`, the names of pinned bases."""
    db.execute("CREATE TABLE bases (name TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID")


MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    2: _to_3,
    3: _to_4,
    4: _to_5,
    5: _to_6,
    6: _to_7,
    7: _to_8,
    8: _to_9,
}
"""The migrations, by the format that each one starts from. A migration does not use the program's record types, since
these change with later formats.
"""

FORMAT = max(MIGRATIONS) + 1


def bring_up_to_date(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file, or migrate a file of an earlier format, in one transaction.

    Raises StoreDamaged if the format is not known, a record cannot be decoded, or the file is another program's; Failed
    if the file cannot be written.
    """
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found == FORMAT:
        return
    if found != 0 and found not in MIGRATIONS:
        said = f"its format is {found}, but this version of Waypoint reads format {FORMAT}"
        raise StoreDamaged("open", str(path), said, "use the version of Waypoint that made it")
    if found == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise damaged("open", path, "it is the database of another program")
    with sqlite_errors("bring up to date", path):
        try:
            _migrate(db, found)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # the latter: a string in the JSON is not UTF-8
            raise damaged("bring up to date", path, f"a record in it is damaged: {error}") from error


def _migrate(db: sqlite3.Connection, found: int) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        if found == 0:
            for statement in _FIRST_TABLES:
                db.execute(statement)
        for number in range(found or FIRST, FORMAT):
            MIGRATIONS[number](db)
        db.execute(f"PRAGMA user_version = {FORMAT}")
