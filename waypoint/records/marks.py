"""The marks of the folders that belong to this names.db. Because of them, the sweep after a crash removes only what
Waypoint left behind.

Things in a home (trees, folders of captures, sessions) have ids. Before a thing is made, its id is listed as disposable
in names.db. The transaction that records the thing removes the id from that list; the transaction that removes the
record lists the id again. So after a crash, the disposable ids are those of the left-overs. A thing whose id is neither
recorded nor disposable is a stranger: it may be recorded in another database, if this one is new, from elsewhere, or an
older copy.

An id that is disposable in an older copy may be recorded in a later one. So each folder (the pool, the hot area, the
runtime folder of the sessions) has a mark, the file `.names-db`: the identity that the database had when the last
daemon opened it.
"""

import contextlib
from pathlib import Path

import msgspec

from waypoint.linux.storage import files
from waypoint.model.records import StoreIdentity

MARK = ".names-db"


def has_mark(folder: Path, identity: StoreIdentity) -> bool:
    """Whether `folder` has the mark of this database, made by its present or an earlier state. False if the mark cannot
    be read.
    """
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode((folder / MARK).read_bytes(), type=StoreIdentity)
        return found.id == identity.id and found.opened <= identity.opened
    return False


def put_mark(folder: Path, identity: StoreIdentity) -> None:
    """Mark `folder` as belonging to this database. Raises OSError; the old mark is kept then.

    The mark is not synced: without it after a power loss, the sweep removes less.
    """
    files.publish(str(folder / MARK), msgspec.json.encode(identity), durable=False)
