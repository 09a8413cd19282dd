"""SQLite connections to one file: a connection for writing, and one for each thread that reads.

A reader has a connection of its own because SQLite shows each connection only what others have committed
(sqlite.org/isolation.html); on the writer's connection, a reader would see the writer's unfinished transaction.
"""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from waypoint.model.errors import StoreDamaged
from waypoint.records.failures import damaged, sqlite_errors
from waypoint.records.format import bring_up_to_date

CACHE_KIB = 512

_NEVER_CLOSED: list[sqlite3.Connection] = []
"""Connections to files that SQLite reports as damaged, kept open on purpose. When the last connection to a file is
closed, SQLite removes the file's log, even if it could not read the file. The log may contain all committed changes.
"""


def open_writer(path: Path) -> sqlite3.Connection:
    """Open or create the file, and bring its format up to date. Any thread may use the connection, one at a time.

    Raises StoreDamaged if the file is not a database, or is missing although its log exists; Failed if the machine
    refuses (disk full, read-only, in use). A failure changes neither the file nor the log.
    """
    with sqlite_errors("open", path):
        _check_log(path)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        with sqlite_errors("open", path):
            path.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            bring_up_to_date(db, path)
    except BaseException as error:
        if isinstance(error, StoreDamaged) and isinstance(error.__cause__, sqlite3.DatabaseError):
            _NEVER_CLOSED.append(db)
        else:
            db.close()
        raise
    return db


def _check_log(path: Path) -> None:
    """Raise StoreDamaged if the file is missing or empty, but its log has content: SQLite would remove this log."""
    log = Path(f"{path}-wal")
    if _size(log) and not _size(path):
        raise damaged("open", path, f"it is missing or empty, but its log {log.name} exists")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class ReadConnections:
    """The read-only connections, one for each thread, opened when the thread first reads. The connection of
    `open_writer` must stay open meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[tuple[threading.Thread, sqlite3.Connection]] = []

    def execute(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one query on the calling thread's connection.

        The caller must fetch all rows at once: a query that is not read to its end keeps SQLite from emptying the WAL.
        """
        with sqlite_errors("read", self._path):
            try:
                db: sqlite3.Connection = self._local.db
            except AttributeError:
                db = self._local.db = self._connect()
            return db.execute(query, values)

    def close(self) -> None:
        with self._lock:
            for _thread, db in self._open:
                db.close()
            self._open.clear()

    def _connect(self) -> sqlite3.Connection:
        """Open a connection for the calling thread, and close those of threads that have ended."""
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)  # closed by another thread
        db.execute("PRAGMA query_only = 1")
        db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        with self._lock:
            for thread, other in self._open:
                if not thread.is_alive():
                    other.close()
            self._open = [(thread, other) for thread, other in self._open if thread.is_alive()]
            self._open.append((threading.current_thread(), db))
        return db
