"""The index: in which pack each object is. It contains nothing that the packs do not tell, so it can be rebuilt.

SQLite in WAL mode without fsync at each commit: after a power loss the index may lack packs, which `catch_up` adds.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from waypoint.store.packs import BadPack, Directory

_FORMAT = 1
_MAX_VARIABLES = 500  # of a query: SQLite accepts 999, newer ones more
_PATIENCE_S = 60.0
_TABLES = (
    "CREATE TABLE packs (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, size INTEGER NOT NULL)",
    """CREATE TABLE objects (address BLOB PRIMARY KEY, kind INTEGER NOT NULL, codec INTEGER NOT NULL,
    pack INTEGER NOT NULL, offset INTEGER NOT NULL, stored INTEGER NOT NULL, length INTEGER NOT NULL, base BLOB)
    WITHOUT ROWID""",
    "CREATE INDEX objects_of_pack ON objects (pack, offset)",
)
_COLUMNS = "kind, codec, packs.name, offset, stored, length, base"
_JOINED = "objects JOIN packs ON packs.number = objects.pack"


class Location(NamedTuple):
    """Where an object is: `stored` bytes of the pack, from the byte `offset` on. The rest as in PackRow."""

    kind: int
    codec: int
    pack: str
    offset: int
    stored: int
    length: int
    base: bytes | None


class Index:
    """An open index, for one thread at a time. All methods raise sqlite3.Error. `may_write`: for the holder of the
    store's lock; an index that is damaged or of another format is then made again.
    """

    def __init__(self, path: str, *, may_write: bool) -> None:
        self.path = path
        try:
            self._db = _open(path)
        except sqlite3.DatabaseError as error:
            if not may_write or isinstance(error, sqlite3.OperationalError):
                raise
            remove(path)
            self._db = _open(path)

    def close(self) -> None:
        self._db.close()

    def find(self, address: bytes) -> Location | None:
        row = self._db.execute(f"SELECT {_COLUMNS} FROM {_JOINED} WHERE address = ?", (address,)).fetchone()
        return None if row is None else Location(*row)

    def find_each(self, addresses: Sequence[bytes]) -> dict[bytes, Location]:
        """As `find`, for many objects. An object that the index lacks is left out."""
        found = dict[bytes, Location]()
        for start in range(0, len(addresses), _MAX_VARIABLES):
            some = addresses[start : start + _MAX_VARIABLES]
            query = f"SELECT address, {_COLUMNS} FROM {_JOINED} WHERE address IN ({','.join('?' * len(some))})"
            found |= ((address, Location(*rest)) for address, *rest in self._db.execute(query, some))
        return found

    def has(self, address: bytes) -> bool:
        """As `find`, in half the time."""
        return self._db.execute("SELECT 1 FROM objects WHERE address = ?", (address,)).fetchone() is not None

    def has_each(self, addresses: Sequence[bytes]) -> set[bytes]:
        """Those of these addresses that the index has; a fifth of the time of `has`."""
        found = set[bytes]()
        for start in range(0, len(addresses), _MAX_VARIABLES):
            some = addresses[start : start + _MAX_VARIABLES]
            query = f"SELECT address FROM objects WHERE address IN ({','.join('?' * len(some))})"
            found.update(address for (address,) in self._db.execute(query, some))
        return found

    def packs(self) -> dict[str, int]:
        """The sizes of the packs in bytes, by name."""
        return dict(self._db.execute("SELECT name, size FROM packs"))

    def objects(self, pack: str) -> list[tuple[bytes, Location]]:
        """The addresses and locations of the objects that are read from this pack, in order."""
        query = f"SELECT address, {_COLUMNS} FROM {_JOINED} WHERE packs.name = ? ORDER BY offset"
        return [(address, Location(*rest)) for address, *rest in self._db.execute(query, (pack,))]

    def bases(self, addresses: Iterable[bytes]) -> set[bytes]:
        """The addresses of the objects that these objects need as a base."""
        query = "SELECT base FROM objects WHERE address = ? AND base NOTNULL"
        return {base for one in addresses for (base,) in self._db.execute(query, (one,))}

    def replace(self, new: Directory | None, old: Collection[str]) -> None:
        """Add the pack `new`, which has all needed objects of the packs `old`, and remove these from the index. An
        object of `new` that another pack has too is read from there.
        """
        with self._transaction():
            for name in old:
                self._forget(name)
            if new is not None:
                self._add(new.digest.hex(), new)

    def shrink(self) -> None:
        """Give back the space of removed rows, if that is most of the file."""
        free, pages = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
        if 2 * free > pages:
            with contextlib.suppress(sqlite3.OperationalError):  # it is being read, or the disk is full: the next gc
                self._db.execute("VACUUM")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def forget_objects(self, addresses: Iterable[bytes]) -> None:
        """Remove objects that cannot be read, so that the next writer that has them stores them again."""
        with self._transaction():
            self._db.executemany("DELETE FROM objects WHERE address = ?", ((one,) for one in addresses))
            self._forget_without_base()

    def catch_up(
        self, names: Collection[str], read: Callable[[str], Directory], *, rebuild: bool = False
    ) -> dict[str, str]:
        """Make the index that of the packs `names`. Returns why packs could not be read, by name.

        `rebuild`: read all directories, not only those of unknown packs. Of two packs with the same object, the one
        that comes first in `names` is preferred then.
        """
        known, bad = set(self.packs()), dict[str, str]()
        rebuild |= not known <= set(names)  # an object of a missing pack may also be in another one
        if rebuild:
            known = set()
        found = []
        for name in names:
            if name not in known:
                try:
                    found.append((name, read(name)))
                except BadPack as error:
                    bad[name] = str(error)
        with self._transaction():
            if rebuild:
                self._db.execute("DELETE FROM objects")
                self._db.execute("DELETE FROM packs")
            for name, directory in found:
                self._add(name, directory)
            if rebuild or bad:
                self._forget_without_base()
        return bad

    def _forget_without_base(self) -> None:
        """Remove objects whose base is missing: they cannot be read, also if the base is stored again as a DELTA."""
        self._db.execute("DELETE FROM objects WHERE base NOTNULL AND base NOT IN (SELECT address FROM objects)")

    def _add(self, name: str, pack: Directory) -> None:
        number = self._db.execute("INSERT INTO packs (name, size) VALUES (?, ?)", (name, pack.size)).lastrowid
        values = [
            (row.address, row.kind, row.codec, number, offset, row.stored, row.length, row.base)
            for row, offset in pack.placed()
        ]
        self._db.executemany("INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _forget(self, name: str) -> None:
        numbers = "(SELECT number FROM packs WHERE name = ?)"
        self._db.execute(f"DELETE FROM objects WHERE pack = {numbers}", (name,))
        self._db.execute("DELETE FROM packs WHERE name = ?", (name,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:  # SQLite itself has rolled back after some errors, such as a full disk
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def remove(path: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)


def _open(path: str) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite would apply the umask
    db = sqlite3.connect(path, _PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        (found,) = db.execute("PRAGMA user_version").fetchone()
        if found not in (0, _FORMAT):
            raise sqlite3.DatabaseError(f"its format is {found}")
        if not found:
            db.execute("BEGIN IMMEDIATE")
            if not db.execute("PRAGMA user_version").fetchone()[0]:  # nobody else was faster
                for statement in _TABLES:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_FORMAT}")
            db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db
