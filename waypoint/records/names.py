"""Names, captures, live sessions and operations: one SQLite file, `<home>/names.db`.

Every change is one transaction with one entry in the operation log (change.py). With WAL and synchronous=NORMAL a
commit survives SIGKILL of the daemon; after a power loss the file is whole, but may lack the last commits
(sqlite.org/wal.html). Only one process uses the file: the daemon, which holds the home's lock.
"""

import contextlib
import logging
import sqlite3
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from waypoint.model.records import Operation
from waypoint.records.change import Change
from waypoint.records.connections import ReadConnections, open_writer
from waypoint.records.failures import sqlite_errors
from waypoint.records.reading import Reader
from waypoint.records.reserve import Reserve

log = logging.getLogger(__name__)


class Names(Reader):
    """The open file. Any thread may read; the reading methods see committed transactions only. There must be only one
    instance for each file: the lock for writing is in memory.
    """

    def __init__(self, path: Path, reserve: Reserve | None = None) -> None:
        """Open or create the file `path`, and migrate a file of an earlier format. `reserve`: frees space for writing.

        Raises StoreDamaged if the file is no database or its format is not known, Failed if the machine refuses to open
        or migrate it (disk full, read-only, in use). After a failure the file is unchanged.
        """
        self._lock = threading.Lock()
        # Called with each new entry of the log, in order. It must not block. Its exceptions are only logged, because
        # the change is already committed.
        self.on_operation: Callable[[Operation], None] | None = None
        self._reserve = reserve
        self._readers = ReadConnections(path)
        super().__init__(self._readers.execute, path)
        if reserve is not None:
            reserve.make_room()
        self._writer = open_writer(path)

    def close(self) -> None:
        self._readers.close()
        self._writer.close()

    @contextlib.contextmanager
    def change(self, verb: str) -> Iterator[Change]:
        """One transaction: it is committed at the end of the `with` block, an exception rolls it back. One
        thread at a time: others wait. `verb`: the verb of its entry in the operation log. Raises Failed if it cannot be
        written (disk full).
        """
        with self._lock:
            if self._reserve is not None:
                self._reserve.make_room()
            self._write("BEGIN IMMEDIATE")
            try:
                change = Change(self._write, self.path, verb)
                yield change
                entry = change.log()
                self._write("COMMIT")
            except BaseException:
                self._writer.rollback()
                raise
            if entry is not None:
                self._tell(entry)
            if self._reserve is not None:
                self._reserve.refill()

    def _write(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        with sqlite_errors("write", self.path):
            return self._writer.execute(query, values)

    def _tell(self, entry: Operation) -> None:
        if self.on_operation is None:
            return
        try:
            self.on_operation(entry)
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))  # without the message, which may quote a client
            log.error(
                "operation %d is committed, but its event was not published: %s\n%s",
                entry.number,
                type(error).__name__,
                where,
            )
