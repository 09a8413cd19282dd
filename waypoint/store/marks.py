"""Which folders belong to this names.db, so that the sweep after a crash removes only what Waypoint left behind.

Things in a home (trees, folders of captures, sessions) lie under ids. Before a thing is made, its id is noted as
disposable; the transaction that puts the thing on record removes that note; the transaction that takes it off the
record notes the id again. So after a crash, the disposable ids are those of the left-overs. An id that is neither on
record nor disposable is a stranger: another database may know it, because this one is new, foreign, or an older copy
that somebody has put back.

An id that is disposable in an older copy may be on record in a later one. So each folder (the pool, the hot area, the
runtime folder of the sessions) has a mark, the file `.names-db`: the identity of the database, as it was when the last
daemon opened it.
"""

import contextlib
from pathlib import Path

import msgspec

from waypoint.linux.storage import files
from waypoint.model.records import StoreIdentity

MARK = ".names-db"


def has_mark(folder: Path, identity: StoreIdentity) -> bool:
    """Whether `folder` has the mark of this database, and of no later state of it. False if the mark cannot be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode((folder / MARK).read_bytes(), type=StoreIdentity)
        return found.id == identity.id and found.opened <= identity.opened
    return False


def put_mark(folder: Path, identity: StoreIdentity) -> None:
    """Mark `folder` as one of this database. Raises OSError; then the old mark is still there.

    The mark is not synced: without it after a power loss, the sweep removes less.
    """
    files.publish(str(folder / MARK), msgspec.json.encode(identity), durable=False)
