"""Reading the operation log."""

from collections.abc import Callable, Iterator

import msgspec

from waypoint.model.records import Operation
from waypoint.store.reading import PIECE, RecordReader

_COLUMNS = "SELECT number, undone_by, number < (SELECT first_kept FROM identity), record FROM operations"


class LogReader(RecordReader):
    """Reads all records, those of the operation log included."""

    def operation(self, number: int) -> Operation | None:
        """The entry with this number; None if there is none."""
        return self._one(f"{_COLUMNS} WHERE number = ?", number)

    def operations(self, limit: int | None = None) -> list[Operation]:
        """The entries of the log, the newest first, at most `limit` (None: all)."""
        return [operation for piece in self.iter_operations(limit) for operation in piece]

    def iter_operations(self, limit: int | None = None) -> Iterator[list[Operation]]:
        """As `operations`, in lists of at most PIECE entries. Each list is one query, made when it is asked for."""
        left = float("inf") if limit is None else limit
        before = self.last_number() + 1
        while left > 0:
            query = f"{_COLUMNS} WHERE number < ? ORDER BY number DESC LIMIT ?"
            rows = self._execute(query, (before, min(left, PIECE))).fetchall()
            if not rows:
                return
            before = rows[-1][0]
            left -= len(rows)
            yield [self._operation(*row) for row in rows]

    def operations_since(self, number: int) -> list[Operation]:
        """The entries that were written after the entry `number`, the oldest first."""
        rows = self._execute(f"{_COLUMNS} WHERE number > ? ORDER BY number", (number,)).fetchall()
        return [self._operation(*row) for row in rows]

    def last_to_undo(self, is_meant: Callable[[Operation], bool]) -> Operation | None:
        """The newest entry for which `is_meant` is true, that was not taken back, is no undo and is not a part of one;
        None if there is none.

        Undos and their parts are left out because taking back an undo would do the operation again. Reads the entries
        by an index, PIECE at a time, until it has found one.
        """
        query = f"{_COLUMNS} WHERE undone_by IS NULL AND undo IS NULL AND number < ? ORDER BY number DESC LIMIT ?"
        before = self.last_number() + 1
        while rows := self._execute(query, (before, PIECE)).fetchall():
            found = next(filter(is_meant, (self._operation(*row) for row in rows)), None)
            if found is not None:
                return found
            before = rows[-1][0]
        return None

    def last_number(self) -> int:
        """The number of the newest entry; 0 if the log is empty."""
        (last,) = self._execute("SELECT ifnull(max(number), 0) FROM operations", ()).fetchone()
        return int(last)

    def first_since(self, moment: float) -> int:
        """The number of the first entry that was written at `moment` (in seconds since the epoch) or later; if there is
        none, the number that the next entry will have. All entries behind it count as later, whatever their clock was.
        """
        query = "SELECT min(number) FROM operations WHERE json_extract(CAST(record AS TEXT), '$.at') >= ?"
        (first,) = self._execute(query, (moment,)).fetchone()
        return self.last_number() + 1 if first is None else int(first)

    def first_kept(self) -> int:
        """The number of the first entry that can be taken back; what the undo of earlier ones needs may be gone."""
        ((first,),) = self._execute("SELECT first_kept FROM identity", ()).fetchall()
        return int(first)

    def _one(self, query: str, *values: object) -> Operation | None:
        row = self._execute(query, values).fetchone()
        return self._operation(*row) if row else None

    def _operation(self, number: int, undone_by: int | None, expired: int, record: bytes) -> Operation:
        found = self._decoded(record, Operation, f"operation {number}")
        return msgspec.structs.replace(found, number=number, undone=undone_by is not None, expired=bool(expired))
