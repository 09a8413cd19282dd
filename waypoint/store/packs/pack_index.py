"""Where each object is: a database that holds nothing that the packs do not tell, so that it can be made again.

It is written without waiting for the disk. After a power loss it may lack packs, which the next `PackIndex` finds by
their names and reads the directories of; it is never half written (sqlite.org/wal.html, section 9).
"""

import contextlib
import functools
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from waypoint.linux.storage import files
from waypoint.store.packs import pack_format
from waypoint.store.packs.pack_format import HEADER_BYTES, NotAPack, PackRow

_FORMAT = 1
PATIENCE_S = 60.0
"""So long the index may be written to by others, which have to note all packs again if it was lost."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY = 0xFF  # the part of an extended code that says what kind of error it is (sqlite.org/rescode.html)
_TABLES = (
    "CREATE TABLE packs (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, size INTEGER NOT NULL)",
    """CREATE TABLE objects (address BLOB PRIMARY KEY, kind INTEGER NOT NULL, codec INTEGER NOT NULL,
    pack INTEGER NOT NULL, slot INTEGER NOT NULL, offset INTEGER NOT NULL, stored INTEGER NOT NULL,
    length INTEGER NOT NULL, base BLOB) WITHOUT ROWID""",
    "CREATE INDEX objects_of_pack ON objects (pack, slot)",
    "CREATE TABLE retired (name TEXT PRIMARY KEY) WITHOUT ROWID",
)
_VANISHED = "CREATE TABLE IF NOT EXISTS vanished (name TEXT PRIMARY KEY) WITHOUT ROWID"
"""Made with its first row, so that an index of an earlier version goes on, also on a full disk."""
_COLUMNS = "kind, codec, packs.name, slot, offset, stored, length, base"
_JOINED = "objects JOIN packs ON packs.number = objects.pack"


IndexWords = ParamSpec("IndexWords")
Returned = TypeVar("Returned")

_Rows = tuple[str, int, Sequence[PackRow]]
"""A pack as its directory tells: its name, its size in bytes, and what lies in it."""

Copy = tuple[bytes, str]
"""An object in one pack: its address, the pack's name."""


_Opened = tuple[sqlite3.Connection, os.stat_result]


class Found(NamedTuple):
    """Where an object is: in the pack `pack`, the `slot`th, from the byte `offset` on. The rest as in PackRow."""

    kind: int
    codec: int
    pack: str
    slot: int
    offset: int
    stored: int
    length: int
    base: bytes | None


def _mended(
    call: Callable[Concatenate["PackIndex", IndexWords], Returned],
) -> Callable[Concatenate["PackIndex", IndexWords], Returned]:
    """A call that is done again, by an index that was made anew, if SQLite finds damage: most of that shows only when
    the page is read. Not within a transaction that changes something, which has to be done again as a whole.
    """

    @functools.wraps(call)
    def mending(self: "PackIndex", /, *words: IndexWords.args, **more: IndexWords.kwargs) -> Returned:
        try:
            return call(self, *words, **more)
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
            if (self._db.in_transaction and not self._is_still) or code not in _DAMAGED:
                raise
            self._db.close()
            self._db, self._facts = _opened(self._path, self._lock, damaged=self._facts)
            if self._of is not None:
                self._catch_up(*self._of)
            if self._is_still:
                self._db.execute("BEGIN")
            return call(self, *words, **more)

    return mending


class PackIndex:
    """The index of one store. One thread at a time may use it. All calls raise sqlite3.Error for what has happened.

    `doubted`: by address, the packs in which the object could not be read when that was tried last.
    """

    def __init__(self, path: str, lock: str) -> None:
        """Opens the database, or makes it. One that is damaged or of another format is thrown away first. `lock`: the
        path of a lock, held while it is opened. Raises OSError, sqlite3.Error for what has happened.
        """
        self._path, self._lock = path, lock
        self._of: tuple[str, bytes] | None = None
        self._is_still = False
        self.doubted: dict[bytes, set[str]] = {}
        self._db, self._facts = _opened(path, lock)

    def close(self) -> None:
        self._db.close()

    @property
    def is_current(self) -> bool:
        """Whether nobody has made the index anew since it was opened here. Raises OSError."""
        return _is_at(self._path, self._facts)

    @_mended
    def find(self, address: bytes) -> Found | None:
        row = self._db.execute(f"SELECT {_COLUMNS} FROM {_JOINED} WHERE address = ?", (address,)).fetchone()
        return None if row is None else Found(*row)

    @_mended
    def packs(self) -> dict[str, int]:
        """The packs by name, with their sizes in bytes."""
        return dict(self._db.execute("SELECT name, size FROM packs"))

    @_mended
    def objects(self, pack: str) -> list[tuple[bytes, Found]]:
        """The objects that are read from this pack, with their addresses, in their order. An object that lies in two
        packs is read from one.
        """
        query = f"SELECT address, {_COLUMNS} FROM {_JOINED} WHERE packs.name = ? ORDER BY slot"
        return [(address, Found(*rest)) for address, *rest in self._db.execute(query, (pack,))]

    @_mended
    def bases(self, addresses: Collection[bytes]) -> set[bytes]:
        """The addresses of the bases of these objects."""
        found = (self._db.execute("SELECT base FROM objects WHERE address = ?", (one,)).fetchone() for one in addresses)
        return {row[0] for row in found if row is not None and row[0] is not None}

    @_mended
    def add(self, packs: Sequence[_Rows]) -> None:
        """Note these packs, all or none. What lies in an earlier pack is read from that, unless it is doubted there."""
        with _transaction(self._db):
            for name, size, rows in packs:
                query = "INSERT OR IGNORE INTO packs (name, size) VALUES (?, ?)"
                if self._db.execute(query, (name, size)).rowcount:
                    (number,) = self._db.execute("SELECT number FROM packs WHERE name = ?", (name,)).fetchone()
                    _give_way(self._db, name, rows, self.doubted)
                    into = "INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                    self._db.executemany(into, _placed(number, rows))

    @_mended
    def replace(self, new: Sequence[_Rows], old: Collection[str]) -> None:
        """Note the packs `new`, and retire the packs `old`, in one step: nothing is read from those any more, and
        nothing in them is noted again, while their files are there. A reader may have noted a new one already, but not
        that what lies in it and in an old one is read from it.
        """
        with _transaction(self._db):
            for name in (*old, *(name for name, _, _ in new)):
                _forget(self._db, name)
            self._db.executemany("INSERT OR IGNORE INTO retired VALUES (?)", [(name,) for name in old])
            self.add(new)

    @_mended
    def retired(self) -> list[str]:
        """The packs whose files are to be removed."""
        return [name for (name,) in self._db.execute("SELECT name FROM retired ORDER BY name")]

    @property
    @_mended
    def vanished(self) -> set[str]:
        """The packs whose files are gone though nobody has retired them, and that are still waited for."""
        return _vanished(self._db)

    @_mended
    def removed(self, name: str) -> None:
        """Note that the file of a retired pack is gone, or that one which has vanished is not waited for any more."""
        with _transaction(self._db):
            self._db.execute("DELETE FROM retired WHERE name = ?", (name,))
            _change_vanished(self._db, _vanished(self._db) - {name})

    @_mended
    def catch_up(self, folder: str, key: bytes, doubted: Collection[Copy] = ()) -> list[str]:
        """Forget packs that are not in the folder, and note those that are and were not known. Returns, in words, which
        of these cannot be read. `doubted`: copies that could not be read. Raises OSError, WrongBytes if the key is not
        the store's.
        """
        self._of = folder, key
        self.doubted = by_address(doubted)
        return self._catch_up(folder, key)

    def _catch_up(self, folder: str, key: bytes) -> list[str]:
        read: dict[str, _Rows | None] = {}
        unread: list[str] = []
        while lacking := self._take_over(folder, read):
            for name in lacking:  # outside of the transaction: others wait for that only a moment
                read[name] = None
                try:
                    read[name] = _read(folder, name, key)
                except NotAPack as error:
                    unread.append(f"{folder}/{name}.pack: {error}")
                except FileNotFoundError:
                    del read[name]  # it was retired meanwhile
        return unread

    def _take_over(self, folder: str, read: dict[str, _Rows | None]) -> list[str]:
        """Make the index that of the packs in the folder, if `read` has the directories of all that are not known; None
        for one that cannot be read. Returns which it lacks; nothing has changed then.

        The folder is listed in the transaction: as of one moment, a pack that is known is there, or was removed.
        """
        with _transaction(self._db):
            there = {name.removesuffix(".pack") for name in os.listdir(folder) if name.endswith(".pack")}
            there -= set(self.retired())
            known = set(self.packs())
            # What lay in a pack that is gone may lie in others, too, from which it was not read: look at all again.
            to_read = there if known - there else there - known
            if lacking := sorted(to_read - read.keys()):
                return lacking
            for name in (known - there) | (known & to_read):
                _forget(self._db, name)
            _change_vanished(self._db, (_vanished(self._db) | known) - there)
            self.add([rows for name in sorted(to_read) if (rows := read[name]) is not None])
        return []


def by_address(copies: Collection[Copy]) -> dict[bytes, set[str]]:
    """The packs of these copies, by address."""
    found: dict[bytes, set[str]] = {}
    for address, pack in copies:
        found.setdefault(address, set()).add(pack)
    return found


@contextlib.contextmanager
def standing_still(index: PackIndex) -> Iterator[None]:
    """What is found in the `with` block is what the index has when it begins, whatever other processes change. It must
    not be changed in it.
    """
    index._db.execute("BEGIN")
    index._is_still = True
    try:
        index.packs()  # from here on
        yield
    finally:
        index._is_still = False
        if index._db.in_transaction:  # an error may have ended it
            index._db.execute("ROLLBACK")


def _opened(path: str, lock: str, *, damaged: os.stat_result | None = None) -> _Opened:
    """The database; one that cannot be used is thrown away first, and so is the one that has shown to be `damaged`, if
    it is still that. The lock keeps others from opening, meanwhile, one of its files without the other.
    """
    with files.locked(lock):
        if damaged is not None and _is_at(path, damaged):
            _remove(path)
        try:
            return _connected(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
        _remove(path)
        return _connected(path)


def _is_at(path: str, facts: os.stat_result) -> bool:
    try:
        return os.path.samestat(facts, os.stat(path))  # an inode that is open is given to no other file
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)


def _connected(path: str) -> _Opened:
    # SQLite gives its files beside the database the mode that this one has.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    facts = os.fstat(fd)  # if somebody makes it anew before it is opened: those of one that is not current
    os.close(fd)
    db = sqlite3.connect(path, PATIENCE_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        (found,) = db.execute("PRAGMA user_version").fetchone()
        if found != _FORMAT:
            if found:
                raise sqlite3.DatabaseError(f"its format is {found}")
            with _transaction(db):
                for statement in _TABLES:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_FORMAT}")
    except BaseException:
        db.close()
        raise
    return db, facts


def _forget(db: sqlite3.Connection, name: str) -> None:
    of = "(SELECT number FROM packs WHERE name = ?)"
    db.execute(f"DELETE FROM objects WHERE pack = {of}", (name,))
    db.execute("DELETE FROM packs WHERE name = ?", (name,))


def _vanished(db: sqlite3.Connection) -> set[str]:
    if db.execute("SELECT name FROM sqlite_master WHERE name = 'vanished'").fetchone() is None:
        return set()
    return {name for (name,) in db.execute("SELECT name FROM vanished")}


def _change_vanished(db: sqlite3.Connection, names: set[str]) -> None:
    """Note just these as vanished."""
    noted = _vanished(db)
    if names == noted:
        return
    db.execute(_VANISHED)
    db.executemany("INSERT INTO vanished VALUES (?)", [(name,) for name in names - noted])
    db.executemany("DELETE FROM vanished WHERE name = ?", [(name,) for name in noted - names])


def _give_way(db: sqlite3.Connection, name: str, rows: Sequence[PackRow], doubted: Mapping[bytes, set[str]]) -> None:
    """Forget copies that are doubted, of what the pack `name` has, too."""
    of = "(SELECT number FROM packs WHERE name = ?)"
    for row in rows if doubted else ():
        for pack in doubted.get(row.address, set()) - {name}:
            db.execute(f"DELETE FROM objects WHERE address = ? AND pack = {of}", (row.address, pack))


def _read(folder: str, name: str, key: bytes) -> _Rows:
    with open(f"{folder}/{name}.pack", "rb", buffering=0) as file:
        rows, _ = pack_format.read_directory(file.fileno(), key)
        return name, os.fstat(file.fileno()).st_size, rows


def _placed(pack: int, rows: Sequence[PackRow]) -> Iterator[tuple[object, ...]]:
    offset = HEADER_BYTES
    for slot, row in enumerate(rows):
        yield row.address, row.kind, row.codec, pack, slot, offset, row.stored, row.length, row.base
        offset += row.stored


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """One transaction; within one, a part of it."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # some errors end it: a full disk, one that fails
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
