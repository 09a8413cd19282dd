"""Names, captures, live sessions and operations: one SQLite file, `<home>/names.db`. Here: reading it.

Every change is one transaction with one entry in the operation log (change.py). With WAL and synchronous=NORMAL a
commit survives SIGKILL of anything of ours at once, and a power loss never tears the file, though it may take back the
last commits (sqlite.org/wal.html). One process writes: the daemon holds the home's lock.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waypoint.model.errors import Failed, StoreDamaged, UnknownName
from waypoint.model.ids import is_id_prefix
from waypoint.model.records import Capture, LiveRow, Operation, Ref
from waypoint.store.change import Change

FORMAT = 2

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS refs (name TEXT PRIMARY KEY, capture TEXT, record BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS refs_of_capture ON refs (capture);
CREATE TABLE IF NOT EXISTS captures (id TEXT PRIMARY KEY, created REAL NOT NULL, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS live (
    session TEXT PRIMARY KEY, branch TEXT NOT NULL, ready INTEGER NOT NULL, record BLOB NOT NULL) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS one_session_on_a_branch ON live (branch) WHERE ready;
CREATE TABLE IF NOT EXISTS operations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, undone_by INTEGER, record BLOB NOT NULL);
PRAGMA user_version = {FORMAT};
"""


class Names:
    """The open file. Closed by `close`; a second instance in the same process is a mistake."""

    def __init__(self, path: Path) -> None:
        """Open or create. Raises StoreDamaged if the file is not ours or of another format."""
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found not in (0, FORMAT):
                next_step = "use a newer waypoint" if found > FORMAT else "use the waypoint that made this home"
                raise StoreDamaged("open", str(path), f"its format is {found}, this program knows {FORMAT}", next_step)
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise StoreDamaged("open", str(path), str(error), "move the file away to start afresh") from error

    def close(self) -> None:
        self._db.close()

    def ref(self, name: str) -> Ref | None:
        """What the name stands for; None if there is no such name."""
        row = self._db.execute("SELECT record FROM refs WHERE name = ?", (name,)).fetchone()
        return msgspec.json.decode(row[0], type=Ref) if row else None

    def refs(self) -> dict[str, Ref]:
        """All names, sorted."""
        rows = self._db.execute("SELECT name, record FROM refs ORDER BY name").fetchall()
        return {name: msgspec.json.decode(record, type=Ref) for name, record in rows}

    def names_of(self, capture_id: str) -> list[str]:
        """The branches whose tip it is, and the checkpoints."""
        rows = self._db.execute("SELECT name FROM refs WHERE capture = ? ORDER BY name", (capture_id,))
        return [name for (name,) in rows.fetchall()]

    def capture(self, capture_id: str) -> Capture:
        """Raises StoreDamaged if it is not there: ids come from our own rows."""
        row = self._db.execute("SELECT record FROM captures WHERE id = ?", (capture_id,)).fetchone()
        if row is None:
            raise StoreDamaged("read", f"capture {capture_id}", "no such record", "run 'waypoint verify'")
        return msgspec.json.decode(row[0], type=Capture)

    def captures(self) -> list[Capture]:
        """All of them, the oldest first."""
        rows = self._db.execute("SELECT record FROM captures ORDER BY created").fetchall()
        return [msgspec.json.decode(record, type=Capture) for (record,) in rows]

    def live(self, *, ready: bool = True) -> list[LiveRow]:
        """The sessions that were started and have not ended; with `ready` False those whose start was not finished."""
        rows = self._db.execute("SELECT record FROM live WHERE ready = ? ORDER BY branch", (ready,)).fetchall()
        return [msgspec.json.decode(record, type=LiveRow) for (record,) in rows]

    def resolve(self, text: str) -> Capture:
        """The capture that a name, a capture's id or a unique prefix of one stands for. Raises UnknownName."""
        ref = self.ref(text)
        if ref and ref.capture:
            return self.capture(ref.capture)
        ids: list[str] = []
        if is_id_prefix(text):
            ids = [i for (i,) in self._db.execute("SELECT id FROM captures WHERE id GLOB ? LIMIT 3", (f"{text}*",))]
        if len(ids) == 1:
            return self.capture(ids[0])
        if ids:
            raise UnknownName("find", repr(text), "more than one capture starts with this", "give more digits")
        if ref:
            next_step = f"make a checkpoint of it: waypoint checkpoint NAME -b {text}"
            raise UnknownName("go back to", repr(text), "nothing has been captured on this branch yet", next_step)
        raise UnknownName("find", repr(text), "nothing has this name", "'waypoint log --all' lists what there is")

    def operations(self, limit: int | None = None) -> list[Operation]:
        """The log, the newest first."""
        rows = self._db.execute(
            "SELECT number, undone_by, record FROM operations ORDER BY number DESC LIMIT ?",
            (-1 if limit is None else limit,),
        )
        return [_operation(*row) for row in rows.fetchall()]

    def operation(self, number: int) -> Operation | None:
        row = self._db.execute(
            "SELECT number, undone_by, record FROM operations WHERE number = ?", (number,)
        ).fetchone()
        return _operation(*row) if row else None

    @contextlib.contextmanager
    def change(self, verb: str) -> Iterator[Change]:
        """One transaction, all or nothing, which is one entry of the operation log unless it moves nothing.

        Raises Failed if it cannot be written (disk full).
        Threads of the daemon take turns: they share the connection.
        """
        try:
            with self._lock, self._db:
                self._db.execute("BEGIN IMMEDIATE")
                change = Change(self._db, verb)
                yield change
                change.log()
        except sqlite3.OperationalError as error:
            raise Failed("write", "names.db", str(error), "free some disk space in the home") from error


def _operation(number: int, undone_by: int | None, record: bytes) -> Operation:
    found = msgspec.json.decode(record, type=Operation)
    return msgspec.structs.replace(found, number=number, undone=undone_by is not None)
