"""One store: its folder, who may write, reading and adding objects and images.

```
config.json    id of the store, key of the addresses or, encrypted, the locked master key (config.py)
packs/         objects; index.db leads to them
images/        one manifest each
tmp/           what the present writer has begun
lock           held by the one writer (flock(2)); the kernel releases the lock of a writer that dies
```
Write order: pack (fsync), its name, index, fsync of `packs/`, manifest (fsync, name, fsync of `images/`). A crash
leaves objects that no image needs, which the next gc removes, and never an image without its objects. Readers need no
lock: an object that an image needs is always in some pack that the index leads to.
"""

import contextlib
import errno
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from waypoint.linux.storage import files
from waypoint.linux.storage.deep import remove_path
from waypoint.model.errors import (
    DISK_FAILED,
    MAKE_ROOM,
    READ_ONLY,
    Failed,
    StateConflict,
    StoreDamaged,
    UnknownName,
    of_machine,
)
from waypoint.model.ids import new_id
from waypoint.store import config
from waypoint.store import manifest as manifests
from waypoint.store.index import Index, Location
from waypoint.store.manifest import ANOTHER, Manifest
from waypoint.store.objects import (
    MAX_OBJECT_BYTES,
    Buffer,
    CannotDecode,
    CannotOpen,
    Codec,
    Kind,
    address_of,
    decode,
    digest_of,
    encode,
    encode_near,
)
from waypoint.store.packs import BadPack, Directory, OpenPack, PackRow, PackWriter, open_pack, read_directory
from waypoint.store.steps import Step, reached

if TYPE_CHECKING:
    from waypoint.store.encryption import MasterKey

PACK_BYTES = 24 << 20
"""A pack ends when it is this long, so it has at most 40 MiB."""
_PACK_OBJECTS = 1 << 16
_OPEN_PACKS = 32
_MIN_DELTA = 256
_ID_DIGITS = 64
_FOLDERS = ("packs", "images", "tmp")
_NEXT_STEPS = {
    errno.ENOSPC: MAKE_ROOM,
    errno.EDQUOT: MAKE_ROOM,
    errno.EROFS: READ_ONLY,
    errno.EIO: DISK_FAILED,
}
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class Store:
    """One store. Several processes may use it; of one process, one thread."""

    def __init__(self, path: str, master: bytes | None = None) -> None:
        """Open the store at `path`. `master`: the key of an encrypted store. Raises FileNotFoundError if there is no
        store, StoreDamaged, StateConflict if the key is missing or wrong.
        """
        self.path = path
        self.config = config.read(path)
        self.master: MasterKey | None = None
        if self.config.encryption is None:
            if master is not None:  # another config.json would make the store accept anybody's packs
                raise StoreDamaged("open", f"store {path}", config.PLAIN, config.FROM_BACKUP, code="not-encrypted")
            self.key = bytes.fromhex(self.config.key or "")
            if self.config.id != config.id_of(self.key):  # with another key, every object would seem to be missing
                raise config.damaged(path, "config.json: the key is not that of the id")
            return
        if master is None:
            said = "it is encrypted, and config.json of the home does not say so"
            raise StateConflict("open", f"store {path}", said, "waypoint setup --encrypt", code="store-locked")
        from waypoint.store import encryption  # which loads more

        self.master = encryption.MasterKey(master)
        self.key = self.master.addresses()
        if self.config.id != config.id_of(self.key):
            raise config.wrong_key(path)

    @contextlib.contextmanager
    def reading(self) -> "Iterator[Reader]":
        """Read objects. A gc that runs meanwhile moves objects, and removes those that no image needs."""
        with self._failures("read"):
            index = self._index()
            reader = Reader(self, index)
            try:
                yield reader
            finally:
                reader.close()
                index.close()

    def state(self) -> object:
        """A value that is another one after each change of the packs or of the index."""
        with os.scandir(f"{self.path}/packs") as packs:
            paths = sorted(pack.path for pack in packs)
        found = [self.path]
        for path in (*paths, f"{self.path}/index.db", f"{self.path}/index.db-wal"):
            with contextlib.suppress(FileNotFoundError):
                facts = os.stat(path)
                found.append(f"{path} {facts.st_size} {facts.st_mtime_ns}" if facts.st_size else "")
        return tuple(found)

    @contextlib.contextmanager
    def writing(self, *, wait: bool = True) -> "Iterator[Writer]":
        """Add objects and images, as the store's only writer. Raises StateConflict if there is another one and not
        `wait`, Failed for errors of the machine (the disk is full).
        """
        with self._failures("write to"), self._locked(wait=wait):
            for name in os.listdir(f"{self.path}/tmp"):  # of a writer that died
                remove_path(f"{self.path}/tmp/{name}")
            index = self.open_index()
            writer = Writer(self, index)
            try:
                yield writer
            finally:
                writer.close()
                index.close()

    def image_ids(self) -> list[str]:
        return sorted(name for name in os.listdir(f"{self.path}/images") if len(name) == _ID_DIGITS)

    def read_image(self, image_id: str) -> Manifest:
        """Raises UnknownName if the store lacks the image, StoreDamaged."""
        return manifests.decode(image_id, self.read_manifest(image_id))

    def read_manifest(self, image_id: str) -> bytes:
        try:
            with open(f"{self.path}/images/{image_id}", "rb") as file:
                content = file.read(manifests.MAX_BYTES + 1024)
            return content if self.master is None else self.master.open_file(content, image_id.encode())
        except FileNotFoundError as error:
            raise UnknownName("read", f"image {image_id[:12]}", "the store does not have it") from error
        except CannotOpen as error:
            raise manifests.damaged(image_id, f"its manifest cannot be opened: {error}") from error

    def pack(self, name: str) -> str:
        """The path of a pack."""
        return f"{self.path}/packs/{name}"

    def pack_names(self) -> list[str]:
        """The packs on disk, the newest first."""
        with os.scandir(f"{self.path}/packs") as found:
            times = [(entry.stat().st_mtime_ns, entry.name) for entry in found]
        return [name for _, name in sorted(times, reverse=True)]

    def open_index(self) -> Index:
        """Open the index, and add packs that it lacks. For the holder of the lock."""
        index = Index(f"{self.path}/index.db", may_write=True)
        try:
            self.catch_up(index)
        except BaseException:
            index.close()
            raise
        return index

    def catch_up(self, index: Index, *, rebuild: bool = False) -> dict[str, str]:
        """Make the index that of the packs on disk. Returns why packs cannot be read, by name."""
        return index.catch_up(self.pack_names(), self.read_directory, rebuild=rebuild)

    def read_directory(self, pack: str) -> Directory:
        """Raises BadPack, OSError."""
        return read_directory(self.pack(pack), is_sealed=self.master is not None)

    def _index(self) -> Index:
        """Open the index for reading. While another process writes, that one keeps the index complete."""
        try:
            with self._locked(wait=False):
                return self.open_index()
        except StateConflict:
            return Index(f"{self.path}/index.db", may_write=False)

    @contextlib.contextmanager
    def _locked(self, *, wait: bool) -> Iterator[None]:
        try:
            fd = files.lock(f"{self.path}/lock", wait=wait)
        except BlockingIOError as error:
            said = "another process writes to it"
            raise StateConflict("write to", f"store {self.path}", said, "try again later", code="store-busy") from error
        try:
            yield
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _failures(self, tried: str) -> Iterator[None]:
        """Turn errors of the machine in the `with` block into Failed."""
        on = f"store {self.path}"
        try:
            yield
        except OSError as error:
            said = f"{error.strerror} {os.fsdecode(error.filename or '')}".rstrip()
            next_step = _NEXT_STEPS.get(error.errno or 0, "try again")
            raise Failed(tried, on, said, next_step, code=of_machine(error.errno)) from error
        except sqlite3.Error as error:
            is_full = getattr(error, "sqlite_errorcode", 0) & 0xFF in _FULL
            next_step = MAKE_ROOM if is_full else "try again"
            raise Failed(
                tried, f"{self.path}/index.db", str(error), next_step, code="disk-full" if is_full else ""
            ) from (error)


class Reader:
    """Reads objects, and checks each one. Of one thread."""

    def __init__(self, store: Store, index: Index) -> None:
        self.store = store
        self.index = index
        self._key = store.key
        self._packs: OrderedDict[str, OpenPack] = OrderedDict()

    def close(self) -> None:
        while self._packs:
            os.close(self._packs.popitem()[1].fd)

    def another(self) -> "Reader":
        """A reader of the same store, for another thread. The caller closes it and its index."""
        return Reader(self.store, Index(self.index.path, may_write=False))

    def has(self, digest: bytes) -> bool:
        return self.find(address_of(digest, self._key)) is not None

    def get(self, kind: Kind, digest: bytes) -> bytes:
        """Return the content of an object. Raises StoreDamaged if it is missing, or not what was written."""
        return self._read(address_of(digest, self._key), kind)

    def get_each(self, kind: Kind, digests: Sequence[bytes]) -> Iterator[bytes]:
        """As `get`, for objects that are looked up together, which takes a fifth of the time."""
        addresses = [address_of(digest, self._key) for digest in digests]
        found = self.find_each(addresses)
        return (self._read(address, kind, found.get(address)) for address in addresses)

    def address(self, digest: bytes) -> bytes:
        return address_of(digest, self._key)

    def find(self, address: bytes) -> Location | None:
        return self.index.find(address)

    def find_each(self, addresses: Sequence[bytes]) -> dict[bytes, Location]:
        """As `find`, for many objects. Some that exist may be missing."""
        return self.index.find_each(addresses)

    def check(self, address: bytes) -> None:
        """Read the object at `address`. Raises StoreDamaged."""
        self._read(address, None)

    def payload(self, address: bytes) -> tuple[PackRow, bytes]:
        """Return an object with its payload, opened, to be copied to another pack. Checked: raises StoreDamaged."""
        self._read(address, None)
        found = self._found(address)
        return _row(address, found), self._payload(address, found)

    def _found(self, address: bytes) -> Location:
        found = self.find(address)
        if found is None:
            raise damaged(address, "it is missing")
        return found

    def _read(self, address: bytes, kind: Kind | None, found: Location | None = None) -> bytes:
        found = found or self._found(address)
        if kind is not None and found.kind != kind:
            raise damaged(address, f"it is a {Kind(found.kind).name}, not a {kind.name}")
        base = None
        if found.base is not None:
            below = self._found(found.base)
            if below.base is not None:  # never written; a chain could have no end
                raise damaged(address, "its base has a base")
            base = self._decoded(found.base, below, None)
        content = self._decoded(address, found, base)
        if address_of(digest_of(Kind(found.kind), content), self._key) != address:
            raise damaged(address, "its content has another digest")
        return content

    def _decoded(self, address: bytes, found: Location, base: bytes | None) -> bytes:
        try:
            return decode(Codec(found.codec), self._payload(address, found), found.length, base)
        except CannotDecode as error:
            raise damaged(address, str(error)) from error

    def _payload(self, address: bytes, found: Location) -> bytes:
        try:
            payload = self._pack_of(found).read(_row(address, found), found.offset)
        except BadPack as error:
            raise damaged(address, f"its pack {found.pack[:16]}: {error}") from error
        except FileNotFoundError as error:
            again = self.find(address)
            if again is None or again.pack == found.pack:
                raise damaged(address, f"its pack {found.pack[:16]} is missing") from error
            return self._payload(address, again)  # a gc has moved it
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise damaged(address, os.strerror(errno.EIO), DISK_FAILED) from error
        if len(payload) != found.stored:
            raise damaged(address, f"its pack {found.pack[:16]} is too short")
        return payload

    def _pack_of(self, found: Location) -> OpenPack:
        pack = self._packs.get(found.pack)
        if pack is not None:
            self._packs.move_to_end(found.pack)
            return pack
        pack = open_pack(self.store.pack(found.pack), self.store.master)
        if len(self._packs) >= _OPEN_PACKS:
            os.close(self._packs.popitem(last=False)[1].fd)
        self._packs[found.pack] = pack
        return pack


class Writer(Reader):
    """Adds objects and images, and reads what it has added. `Store.writing` makes it.

    `passed`, `new_bytes`: bytes of content given to `put`, and bytes that were added to packs. `on_progress`: called
    with `passed` now and then. `rereads`: `put` reads objects that the store has, and adds damaged ones again.
    """

    def __init__(self, store: Store, index: Index) -> None:
        super().__init__(store, index)
        self.passed = self.new_bytes = 0
        self.on_progress: Callable[[int], None] | None = None
        self.rereads = False
        self._pack: PackWriter | None = None
        self._in_pack: dict[bytes, Location] = {}
        self._expected: set[bytes] = set()

    def expect(self, digests: Iterable[bytes]) -> None:
        """Look up together the objects that will probably be put next, and that the store probably has."""
        self._expected = self.index.has_each([self.address(digest) for digest in digests])

    def put(self, kind: Kind, content: Buffer, near: bytes | None = None) -> bytes:
        """Add an object, unless the store has it; return its digest. It is durable after `commit`.

        `near`: the digest of an object of this kind that may differ little; it need not exist. After an OSError only
        `close` may be called.
        """
        if len(content) > MAX_OBJECT_BYTES:
            raise ValueError(f"an object of {len(content)} bytes")
        self._count(len(content))
        digest = digest_of(kind, content)
        address = address_of(digest, self._key)
        if address in self._in_pack or self._is_stored(address):
            return digest
        base = self._base(kind, near) if near is not None and len(content) >= _MIN_DELTA else None
        encoded = encode(content) if base is None else encode_near(content, base[1])
        base_address = base[0] if base is not None and encoded.codec == Codec.DELTA else None
        row = PackRow(address, kind, encoded.codec, len(encoded.payload), len(content), base_address)
        self.copy(row, encoded.payload)
        if self._pack is not None and (self._pack.size >= PACK_BYTES or len(self._in_pack) >= _PACK_OBJECTS):
            self.end_pack()
        return digest

    def copy(self, row: PackRow, payload: Buffer) -> None:
        """Add an encoded object to the present pack, which does not end by itself."""
        if self._pack is None:
            master = self.store.master
            self._pack = PackWriter(f"{self.store.path}/tmp/{new_id()}", master.new_seal() if master else None)
        offset = self._pack.add(row, payload)
        self._in_pack[row.address] = Location(row.kind, row.codec, "", offset, row.stored, row.length, row.base)
        self.new_bytes += row.stored

    def commit(self) -> None:
        """Make everything that was put durable."""
        self.end_pack()
        files.sync_folder(f"{self.store.path}/packs")
        reached(Step.PACKS_DURABLE)

    def add_image(self, manifest: Manifest) -> str:
        """Add an image whose objects are in the store; it is durable on return. Returns its id."""
        content = manifests.encode(manifest)
        if len(content) > manifests.MAX_BYTES:
            raise ValueError(f"a manifest of {len(content)} bytes")
        self.commit()
        image_id, master = manifests.id_of(content), self.store.master
        stored = master.seal_file(content, image_id.encode()) if master is not None else content
        files.publish(f"{self.store.path}/images/{image_id}", stored)
        reached(Step.IMAGE_WRITTEN)
        return image_id

    def remove_image(self, image_id: str) -> None:
        """Remove an image; the next gc removes its objects. Durable after `commit`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.store.path}/images/{image_id}")

    def close(self) -> None:
        """End. What was put since the last `commit` may be lost."""
        if self._pack is not None:
            self._pack.abandon()
            self._pack = None
        super().close()

    def find(self, address: bytes) -> Location | None:
        return self._in_pack.get(address) or self.index.find(address)

    def end_pack(self, replacing: list[str] | None = None) -> str:
        """Publish the present pack, if there is one; return its name. `replacing`: packs that are not needed any more;
        the new one has the same name as one of them if it has the same bytes.
        """
        old = replacing or []
        if self._pack is None:
            if old:
                self.index.replace(None, old)
            return ""
        pack, self._pack = self._pack, None
        try:
            directory = pack.finish()
        finally:
            pack.abandon()
        name = directory.digest.hex()
        reached(Step.PACK_WRITTEN)
        os.rename(pack.path, self.store.pack(name))
        reached(Step.PACK_NAMED if replacing is None else Step.COPIED)
        if old:  # their files are removed next
            files.sync_folder(f"{self.store.path}/packs")
        self.index.replace(directory, old)
        reached(Step.INDEXED if replacing is None else Step.REPLACED)
        self._in_pack.clear()
        return name

    def _is_stored(self, address: bytes) -> bool:
        if address not in self._expected and not self.index.has(address):
            return False
        if self.rereads:
            try:
                self.check(address)
            except StoreDamaged:
                self.index.forget_objects([address])
                self._expected.discard(address)
                return False
        return True

    def _count(self, size: int) -> None:
        before, self.passed = self.passed, self.passed + size
        if self.on_progress is not None and before >> 20 != self.passed >> 20:
            self.on_progress(self.passed)

    def _base(self, kind: Kind, near: bytes) -> tuple[bytes, bytes] | None:
        """Address and content of the object near `near` that may be a base: that object, or its own base."""
        address = address_of(near, self._key)
        found = self.find(address)
        if found is not None and found.base is not None:
            address = found.base
            found = self.find(address)
        if found is None or found.kind != kind or found.base is not None:
            return None
        try:
            return address, self._read(address, kind)
        except StoreDamaged:  # not needed here; `verify` reports it
            return None

    def _pack_of(self, found: Location) -> OpenPack:
        if found.pack == "" and self._pack is not None:
            return self._pack.opened()
        return super()._pack_of(found)


def make_store(path: str) -> Store:
    """Make a store in the folder `path`, which is empty or missing, or has a store that was made incompletely.

    If another process makes it at the same time, open that one.
    """
    key = os.urandom(32)
    with making(path):
        if not os.path.exists(f"{path}/config.json"):
            config.publish(path, config.StoreConfig(format=config.FORMAT, id=config.id_of(key), key=key.hex()))
    return Store(path)


@contextlib.contextmanager
def making(path: str) -> Iterator[None]:
    """Make the folders of a store; for the `with` block, nobody else makes or writes to a store at `path`."""
    files.make_folder(path, 0o700)
    for name in _FOLDERS:
        files.make_folder(f"{path}/{name}", 0o700)
    lock = files.lock(f"{path}/lock", wait=True)
    try:
        yield
    finally:
        os.close(lock)


def _row(address: bytes, found: Location) -> PackRow:
    return PackRow(address, found.kind, found.codec, found.stored, found.length, found.base)


def damaged(address: bytes, said: str, next_step: str = ANOTHER) -> StoreDamaged:
    return StoreDamaged("read", f"object {address.hex()[:16]} of the store", said, next_step)
