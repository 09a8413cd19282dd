"""What may be removed from a home: what this names.db has doomed, where the places bear its identity. Nothing else.

Things in a home (trees, folders of captures, sessions) lie under ids. Who makes a thing notes its id as doomed before;
who puts it on record takes that back, in the same transaction; who takes it off the record dooms it. So after a crash,
the doomed ids are those of the left-overs. An id that is neither on record nor doomed is a stranger: another database
may know it, because this one is new, foreign, or an older copy that somebody has put back.

What is doomed in an older copy may be on record since. So each place (the pool, the hot area, the runtime folder of the
sessions) bears a mark, the file `.names-db`: the identity of the database, as it was when the last daemon opened it.

The ids of images (`store/`) and of journals (`applied/`) are not known before these are made, so they are not doomed.
The home itself bears the mark for both, and only while all that lies in them is on record: then, what is not on record
later is a left-over. Its mark also tells up to which operation the database has gone on since (`keep_up`): a copy that
was made while the same daemon ran lacks what came later.
"""

import contextlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from waypoint.linux.storage import files
from waypoint.model.errors import WaypointError
from waypoint.model.records import StoreIdentity
from waypoint.store.log import LogReader
from waypoint.store.name_change import NameChange

MARK = ".names-db"
_keeping_up = threading.Lock()


class _PlaceMark(StoreIdentity, frozen=True, kw_only=True):
    """`last`: the number of the last operation that was known to be in the log; 0 in a mark of an earlier version."""

    last: int = 0


def belongs(folder: Path, names: LogReader) -> bool:
    """Whether the place `folder` bears the mark of this database, and of no later state of it than this one.

    False if there is no mark, as in a place that is new or was used before there were marks, or if it cannot be read.
    Raises StoreDamaged, Failed (the database cannot be read): who sweeps then leaves all as it is.
    """
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        found, own = msgspec.json.decode((folder / MARK).read_bytes(), type=_PlaceMark), names.identity()
        return found.id == own.id and found.opened <= own.opened and found.last <= names.last_number()
    return False


def mark(folder: Path, names: LogReader) -> None:
    """Mark the place `folder` as one of this database. One thread at a time may do that. Raises OSError,
    StoreDamaged, Failed (the database cannot be read); then the old mark is still there.

    The mark is not synced: what a power loss takes back only makes a place that does not belong.
    """
    own = names.identity()
    now = _PlaceMark(id=own.id, opened=own.opened, last=names.last_number())
    files.publish(str(folder / MARK), msgspec.json.encode(now), durable=False)


def keep_up(folder: Path, names: LogReader) -> None:
    """To be called when something in the place `folder` is on record that is not doomed before: no copy of the database
    that is older belongs to it from then on. Does nothing if this one does not, or cannot be read. Any thread may call
    this. Does not raise: without room for the mark there is none.
    """
    with _keeping_up, contextlib.suppress(WaypointError):  # one writer, so it never goes back to an earlier number
        if belongs(folder, names):
            try:
                mark(folder, names)
            except (OSError, WaypointError):
                with contextlib.suppress(OSError):
                    unmark(folder)


def unmark(folder: Path) -> None:
    """Take the mark away from `folder`: from then on it belongs to no database. Raises OSError."""
    (folder / MARK).unlink(missing_ok=True)


class BelongingChange(NameChange):
    """The part of `Change` about what may be removed, and the identity of the database."""

    def doom(self, ident: str) -> None:
        """Note that what lies under this id may be removed by the next daemon, unless it is on record by then."""
        self._execute("INSERT OR REPLACE INTO doomed VALUES (?, ?)", (ident, time.time()))

    def spare(self, ident: str) -> None:
        """Take back `doom`."""
        self._execute("DELETE FROM doomed WHERE id = ?", (ident,))

    def forget_captures(self, capture_ids: Iterable[str]) -> None:
        """Remove the records of captures. No record of a capture that stays may name them as parents."""
        for capture_id in capture_ids:
            self._execute("DELETE FROM captures WHERE id = ?", (capture_id,))
            self._execute("DELETE FROM standings WHERE capture = ?", (capture_id,))

    def expire(self, first_kept: int) -> None:
        """Note that no operation before the one with the number `first_kept` can be taken back any more."""
        self._execute("UPDATE identity SET first_kept = max(first_kept, ?)", (first_kept,))

    def open_anew(self) -> StoreIdentity:
        """Spare all that is doomed, and count one more opening of the database. Returns its identity from now on."""
        self._execute("DELETE FROM doomed", ())
        self._execute("UPDATE identity SET opened = opened + 1", ())
        return self.identity()
