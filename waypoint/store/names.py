"""Branches, captures and operations: one SQLite file, `<home>/names.db`.

Each public method is one transaction. With WAL and synchronous=NORMAL a commit survives SIGKILL of anything of ours at
once, and a power loss never tears the file, though it may take back the last commits (sqlite.org/wal.html). One process
writes: the daemon holds the home's lock.
"""

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waypoint.model.errors import StateConflict, StoreDamaged, UnknownName
from waypoint.model.ids import is_id_prefix
from waypoint.model.names import excludes
from waypoint.model.records import Capture, LiveRow

FORMAT = 1

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS branches (name TEXT PRIMARY KEY, tip TEXT, created REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS captures (id TEXT PRIMARY KEY, created REAL NOT NULL, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS live (branch TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS operations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, verb TEXT NOT NULL, moves TEXT NOT NULL);
PRAGMA user_version = {FORMAT};
"""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch; `tip` is None until its first session has ended or been captured."""

    name: str
    tip: str | None
    created: float


class Names:
    """The open file. Closed by `close`; a second instance in the same process is a mistake."""

    def __init__(self, path: Path) -> None:
        """Open or create. Raises StoreDamaged if the file is not ours or of a newer format."""
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found not in (0, FORMAT):
                raise StoreDamaged(
                    "open", str(path), f"its format is {found}, this program knows {FORMAT}", "use a newer waypoint"
                )
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise StoreDamaged("open", str(path), str(error), "move the file away to start afresh") from error

    def close(self) -> None:
        self._db.close()

    def branches(self) -> list[Branch]:
        rows = self._db.execute("SELECT name, tip, created FROM branches ORDER BY name")
        return [Branch(name=name, tip=tip, created=created) for name, tip, created in rows]

    def branch(self, name: str) -> Branch | None:
        row = self._db.execute("SELECT name, tip, created FROM branches WHERE name = ?", (name,)).fetchone()
        return Branch(name=row[0], tip=row[1], created=row[2]) if row else None

    def capture(self, capture_id: str) -> Capture:
        """Raises StoreDamaged if it is not there: ids come from our own rows."""
        row = self._db.execute("SELECT record FROM captures WHERE id = ?", (capture_id,)).fetchone()
        if row is None:
            raise StoreDamaged("read", f"capture {capture_id}", "no such record", "run 'waypoint verify'")
        return msgspec.json.decode(row[0], type=Capture)

    def captures(self) -> list[Capture]:
        rows = self._db.execute("SELECT record FROM captures ORDER BY created")
        return [msgspec.json.decode(record, type=Capture) for (record,) in rows]

    def live(self) -> list[LiveRow]:
        rows = self._db.execute("SELECT record FROM live ORDER BY branch")
        return [msgspec.json.decode(record, type=LiveRow) for (record,) in rows]

    def resolve(self, text: str) -> Capture:
        """The capture that a branch name, a capture id or a unique prefix of one stands for. Raises UnknownName."""
        branch = self.branch(text)
        if branch and branch.tip:
            return self.capture(branch.tip)
        ids: list[str] = []
        if is_id_prefix(text):
            ids = [i for (i,) in self._db.execute("SELECT id FROM captures WHERE id GLOB ? LIMIT 3", (f"{text}*",))]
        if len(ids) == 1:
            return self.capture(ids[0])
        if ids:
            raise UnknownName("find", repr(text), "more than one capture starts with this", "give more digits")
        if branch:
            raise UnknownName("start from", repr(text), "nothing has been captured on this branch yet")
        raise UnknownName(
            "find", repr(text), "no branch or capture has this name", "'waypoint ps --all' lists branches"
        )

    def begin(self, row: LiveRow) -> None:
        """Record that a session starts on `row.branch`; makes the branch if it is new.

        Raises StateConflict if the branch is live or its name excludes an existing one.
        """
        with self._transaction():
            if self._db.execute("SELECT 1 FROM live WHERE branch = ?", (row.branch,)).fetchone():
                raise StateConflict("start", f"branch {row.branch}", "it has a live session", "attach to it")
            for (name,) in self._db.execute("SELECT name FROM branches").fetchall():
                if excludes(name, row.branch):
                    raise StateConflict(
                        "create", f"branch {row.branch}", f"the branch {name} exists", "choose another name"
                    )
            created = self._db.execute(
                "INSERT OR IGNORE INTO branches VALUES (?, NULL, ?)", (row.branch, row.started)
            ).rowcount
            self._db.execute("INSERT INTO live VALUES (?, ?)", (row.branch, msgspec.json.encode(row)))
            self._log("start", {row.branch: [None, None]} if created else {})

    def end(self, row: LiveRow, capture: Capture) -> None:
        """The session of `row` is over and `capture` is its branch's new tip, in one step."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO captures VALUES (?, ?, ?)", (capture.id, capture.created, msgspec.json.encode(capture))
            )
            self._db.execute("UPDATE branches SET tip = ? WHERE name = ?", (capture.id, row.branch))
            self._db.execute("DELETE FROM live WHERE branch = ?", (row.branch,))
            self._log("end", {row.branch: [capture.parent, capture.id]})

    def abandon(self, row: LiveRow) -> None:
        """The session of `row` is over and nothing of it is kept. A branch that never had a tip goes with it."""
        with self._transaction():
            self._db.execute("DELETE FROM live WHERE branch = ?", (row.branch,))
            self._db.execute("DELETE FROM branches WHERE name = ? AND tip IS NULL", (row.branch,))
            self._log("discard", {})

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. Threads of the daemon take turns: they share the connection."""
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def _log(self, verb: str, moves: dict[str, list[str | None]]) -> None:
        self._db.execute(
            "INSERT INTO operations (at, verb, moves) VALUES (?, ?, ?)", (time.time(), verb, json.dumps(moves))
        )
