"""One store: its folder, who may write, reading and adding objects and images.

```
config.json    id of the store, key of the addresses
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
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

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
from waypoint.store import manifest as manifests
from waypoint.store.index import Index, Location
from waypoint.store.manifest import ANOTHER, Manifest
from waypoint.store.objects import (
    MAX_OBJECT_BYTES,
    CannotDecode,
    Codec,
    Kind,
    address_of,
    decode,
    digest_of,
    encode,
    encode_near,
)
from waypoint.store.packs import PackRow, PackWriter, read_directory
from waypoint.store.steps import Step, reached

FORMAT = 1
PACK_BYTES = 24 << 20
"""A pack ends when it is this long, so it has at most 40 MiB."""
_PACK_OBJECTS = 1 << 16
_OPEN_PACKS = 32
_MIN_DELTA = 256
_ID_DIGITS = 64
_FROM_BACKUP = "replace config.json by a copy from a backup: nothing else has the key of the store"
_FOLDERS = ("packs", "images", "tmp")
_NEXT_STEPS = {
    errno.ENOSPC: MAKE_ROOM,
    errno.EDQUOT: MAKE_ROOM,
    errno.EROFS: READ_ONLY,
    errno.EIO: DISK_FAILED,
}
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)

Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of config.json. `key`: of the addresses, in hex. `id`: made from the key."""

    format: int
    id: str
    key: Key


class Store:
    """One store. Several processes may use it; of one process, one thread."""

    def __init__(self, path: str) -> None:
        """Open the store at `path`. Raises FileNotFoundError if there is none, StoreDamaged."""
        self.path = path
        try:
            with open(f"{path}/config.json", "rb") as file:
                content = file.read()
        except FileNotFoundError as error:
            if not _has_content(path):
                raise
            raise StoreDamaged("open", f"store {path}", "config.json is missing", _FROM_BACKUP) from error
        try:
            self.config = msgspec.json.decode(content, type=StoreConfig)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreDamaged("open", f"store {path}", f"config.json: {error}", _FROM_BACKUP) from error
        if self.config.format != FORMAT:
            said = f"its format is {self.config.format}; this version of Waypoint reads {FORMAT}"
            raise StoreDamaged("open", f"store {path}", said, "use the version of Waypoint that has made it")
        self.key = bytes.fromhex(self.config.key)
        if self.config.id != _id_of(self.key):  # with another key, every object would seem to be missing
            raise StoreDamaged("open", f"store {path}", "config.json: the key is not that of the id", _FROM_BACKUP)

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
                return file.read(manifests.MAX_BYTES + 1)
        except FileNotFoundError as error:
            raise UnknownName("read", f"image {image_id[:12]}", "the store does not have it") from error

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
        return index.catch_up(self.pack_names(), lambda name: read_directory(self.pack(name)), rebuild=rebuild)

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
        self._packs: OrderedDict[str, int] = OrderedDict()

    def close(self) -> None:
        while self._packs:
            os.close(self._packs.popitem()[1])

    def has(self, digest: bytes) -> bool:
        return self.find(address_of(digest, self._key)) is not None

    def get(self, kind: Kind, digest: bytes) -> bytes:
        """Return the content of an object. Raises StoreDamaged if it is missing, or not what was written."""
        return self._read(address_of(digest, self._key), kind)

    def address(self, digest: bytes) -> bytes:
        return address_of(digest, self._key)

    def find(self, address: bytes) -> Location | None:
        return self.index.find(address)

    def check(self, address: bytes) -> None:
        """Read the object at `address`. Raises StoreDamaged."""
        self._read(address, None)

    def payload(self, address: bytes) -> tuple[PackRow, bytes]:
        """Return an object as it is stored, to be copied to another pack. Checked: raises StoreDamaged."""
        self._read(address, None)
        found = self._found(address)
        row = PackRow(address, found.kind, found.codec, found.stored, found.length, found.base)
        return row, self._payload(address, found)

    def _found(self, address: bytes) -> Location:
        found = self.find(address)
        if found is None:
            raise damaged(address, "it is missing")
        return found

    def _read(self, address: bytes, kind: Kind | None) -> bytes:
        found = self._found(address)
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
            payload = os.pread(self._open(found.pack), found.stored, found.offset)
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

    def _open(self, pack: str) -> int:
        if pack in self._packs:
            self._packs.move_to_end(pack)
            return self._packs[pack]
        fd = os.open(self.store.pack(pack), os.O_RDONLY | os.O_CLOEXEC)
        if len(self._packs) >= _OPEN_PACKS:
            os.close(self._packs.popitem(last=False)[1])
        self._packs[pack] = fd
        return fd


class Writer(Reader):
    """Adds objects and images, and reads what it has added. `Store.writing` makes it.

    `passed`, `new_bytes`: bytes of content given to `put`, and bytes that were added to packs. `on_progress`: called
    with `passed` now and then.
    """

    def __init__(self, store: Store, index: Index) -> None:
        super().__init__(store, index)
        self.passed = self.new_bytes = 0
        self.on_progress: Callable[[int], None] | None = None
        self._pack: PackWriter | None = None
        self._in_pack: dict[bytes, Location] = {}

    def put(self, kind: Kind, content: bytes, near: bytes | None = None) -> bytes:
        """Add an object, unless the store has it; return its digest. It is durable after `commit`.

        `near`: the digest of an object of this kind that may differ little; it need not exist. After an OSError only
        `close` may be called.
        """
        if len(content) > MAX_OBJECT_BYTES:
            raise ValueError(f"an object of {len(content)} bytes")
        self._count(len(content))
        digest = digest_of(kind, content)
        address = address_of(digest, self._key)
        if address in self._in_pack or self.index.has(address):
            return digest
        base = self._base(kind, near) if near is not None and len(content) >= _MIN_DELTA else None
        encoded = encode(content) if base is None else encode_near(content, base[1])
        base_address = base[0] if base is not None and encoded.codec == Codec.DELTA else None
        row = PackRow(address, kind, encoded.codec, len(encoded.payload), len(content), base_address)
        self.copy(row, encoded.payload)
        if self._pack is not None and (self._pack.size >= PACK_BYTES or len(self._in_pack) >= _PACK_OBJECTS):
            self.end_pack()
        return digest

    def copy(self, row: PackRow, payload: bytes) -> None:
        """Add an encoded object to the present pack, which does not end by itself."""
        if self._pack is None:
            self._pack = PackWriter(f"{self.store.path}/tmp/{new_id()}")
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
        image_id = manifests.id_of(content)
        files.publish(f"{self.store.path}/images/{image_id}", content)
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
            name = pack.finish()
        finally:
            pack.abandon()
        reached(Step.PACK_WRITTEN)
        os.rename(pack.path, self.store.pack(name))
        reached(Step.PACK_NAMED if replacing is None else Step.COPIED)
        if old:  # their files are removed next
            files.sync_folder(f"{self.store.path}/packs")
        self.index.replace((name, pack.size, pack.rows), old)
        reached(Step.INDEXED if replacing is None else Step.REPLACED)
        self._in_pack.clear()
        return name

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

    def _payload(self, address: bytes, found: Location) -> bytes:
        if found.pack == "" and self._pack is not None:
            return self._pack.read(found.offset, found.stored)
        return super()._payload(address, found)


def make_store(path: str) -> Store:
    """Make a store in the folder `path`, which is empty or missing, or has a store that was made incompletely.

    If another process makes it at the same time, open that one.
    """
    files.make_folder(path, 0o700)
    for name in _FOLDERS:
        files.make_folder(f"{path}/{name}", 0o700)
    key = os.urandom(32)
    config = StoreConfig(format=FORMAT, id=_id_of(key), key=key.hex())
    lock = files.lock(f"{path}/lock", wait=True)
    try:
        if not os.path.exists(f"{path}/config.json"):
            files.publish(f"{path}/config.json", msgspec.json.format(msgspec.json.encode(config), indent=1))
    finally:
        os.close(lock)
    return Store(path)


def _has_content(path: str) -> bool:
    """Whether the store has packs or images, which another key would make useless."""
    return any(os.path.isdir(f"{path}/{name}") and os.listdir(f"{path}/{name}") for name in ("packs", "images"))


def _id_of(key: bytes) -> str:
    return digest_of(Kind.DATA, key).hex()[:32]


def damaged(address: bytes, said: str, next_step: str = ANOTHER) -> StoreDamaged:
    return StoreDamaged("read", f"object {address.hex()[:16]} of the store", said, next_step)
