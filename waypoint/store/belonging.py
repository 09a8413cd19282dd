"""What may be removed from a home: what this names.db has doomed, where the places bear its identity. Nothing else.

Things in a home (trees, folders of captures, sessions) lie under ids. Who makes a thing notes its id as doomed before;
who puts it on record takes that back, in the same transaction; who takes it off the record dooms it. So after a crash,
the doomed ids are those of the left-overs. An id that is neither on record nor doomed is a stranger: another database
may know it, because this one is new, foreign, or an older copy that somebody has put back.

What is doomed in an older copy may be on record since. So each place (the pool, the hot area, the runtime folder of the
sessions) bears a mark, the file `.names-db`: the identity of the database, as it was when the last daemon opened it.
"""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from waypoint.linux.storage import files
from waypoint.model.records import StoreIdentity
from waypoint.store.name_change import NameChange

MARK = ".names-db"


def belongs(folder: Path, identity: StoreIdentity) -> bool:
    """Whether the place `folder` bears the mark of this database, and of no later state of it than this one.

    False if there is no mark, as in a place that is new or was used before there were marks, or if it cannot be read.
    """
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode((folder / MARK).read_bytes(), type=StoreIdentity)
        return found.id == identity.id and found.opened <= identity.opened
    return False


def mark(folder: Path, identity: StoreIdentity) -> None:
    """Mark the place `folder` as one of this database. Raises OSError; then the old mark is still there.

    The mark is not synced: what a power loss takes back only makes a place that does not belong.
    """
    files.publish(str(folder / MARK), msgspec.json.encode(identity), durable=False)


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
