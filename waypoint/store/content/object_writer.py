"""Adding objects to a store. An object that nothing refers to does no harm: a writer may be killed at any step."""

from collections.abc import Callable
from typing import NamedTuple

from waypoint.model.errors import StoreDamaged
from waypoint.model.ids import new_id
from waypoint.store.content import damage
from waypoint.store.content.keys import Keys
from waypoint.store.content.object_reader import ObjectReader, row_of
from waypoint.store.content.store_folder import StoreFolder
from waypoint.store.content.write_steps import WriteStep, reached
from waypoint.store.packs.codecs import MOST_BYTES, Codec, encode, encode_near
from waypoint.store.packs.digests import Kind, address_of, digest_of
from waypoint.store.packs.pack_format import PackRow
from waypoint.store.packs.pack_index import Found, PackIndex, by_address
from waypoint.store.packs.pack_writer import PackWriter

PACK_BYTES = 32 << 20
"""From where on a pack is ended."""
PACK_OBJECTS = 1 << 17
"""So are packs of many small objects: a directory is read as a whole."""
_TOLD_BYTES = 1 << 20
_LEAST_BASE = 256
"""Content that is shorter is not worth being told by its differences."""


class Added(NamedTuple):
    """What a writer has added: how many objects, their length, and what they take on disk, in bytes."""

    objects: int
    length: int
    stored: int


class ObjectWriter(ObjectReader):
    """Reads, and adds objects, for who holds the lock of writers (`Store.writing`). One thread at a time.

    What was put can be read at once through this writer, by others after `commit`. `passed`: how many bytes of content
    were put so far, also such that the store has; `told` is called with it after each MiB or so.
    """

    def __init__(self, folder: StoreFolder, index: PackIndex, keys: Keys, cipher: int) -> None:
        super().__init__(folder, index, keys)
        self._cipher = cipher
        self._pack_now: PackWriter | None = None
        self._in_pack: dict[bytes, Found] = {}
        self._lacks_packs = bool(index.vanished)
        self.added = Added(0, 0, 0)
        self.passed = 0
        self.told: Callable[[int], None] | None = None

    def put(self, kind: Kind, content: bytes, near: bytes | None = None) -> bytes:
        """Add the object, unless the store has it, and it can be read, if that is doubted. Returns its digest.

        `near`: the digest of an object of the same kind that may differ little, so that the differences are enough; one
        that is not there does not matter. `content` has at most codecs.MOST_BYTES. Raises OSError (ENOSPC); then
        nothing but `close` may follow.
        """
        if len(content) > MOST_BYTES:  # nobody could read the pack
            raise ValueError(f"an object of {len(content)} bytes")
        self._count(len(content))
        digest = digest_of(kind, content)
        address = address_of(digest, self._keys.hash)
        if self.has(digest):
            return digest
        base = None
        if near is not None and len(content) >= _LEAST_BASE and not self._may_be_base(address):
            base = self._base(kind, near)
        encoded = encode(content) if base is None else encode_near(content, base[1])
        base_address = base[0] if base is not None and encoded.codec == Codec.DELTA else None
        row = PackRow(address, kind, encoded.codec, 0, len(content), base_address)
        if self._pack_now is None:
            self._pack_now = PackWriter(f"{self._folder.tmp}/{new_id()}", self._cipher, self._keys.seal)
        found = self._in_pack[address] = self._pack_now.add(row, encoded.payload)
        self.added = Added(self.added.objects + 1, self.added.length + found.length, self.added.stored + found.stored)
        if self._pack_now.size >= PACK_BYTES or len(self._in_pack) >= PACK_OBJECTS:
            self._end_pack()
        return digest

    def _count(self, size: int) -> None:
        before, self.passed = self.passed, self.passed + size
        if self.told is not None and before // _TOLD_BYTES < self.passed // _TOLD_BYTES:
            self.told(self.passed)

    def commit(self) -> None:
        """Have all that was put in the store, and on disk. More may be put after it. Raises OSError; then `close`."""
        self._end_pack()
        self._folder.sync(self._folder.packs)
        reached(WriteStep.PACKS_DURABLE)

    def close(self) -> None:
        """What was put since the last `commit` may be in the store or not. Does not raise."""
        if self._pack_now is not None:
            self._pack_now.abandon()
            self._pack_now = None
        super().close()

    def _end_pack(self) -> None:
        if self._pack_now is None:
            return
        name = self._pack_now.finish()
        reached(WriteStep.PACK_WRITTEN)
        self._folder.publish(self._pack_now.path, self._folder.pack(name))
        reached(WriteStep.PACK_IN_PLACE)
        if self.unreadable:  # what lies in this pack, too, is read from here, also by an index that is made anew
            damage.note(self._folder, self.unreadable)
            self.index.doubted = by_address(damage.known(self._folder))
        self.index.add([(name, self._pack_now.size, self._pack_now.rows)])
        reached(WriteStep.INDEXED)
        self._pack_now = None
        self._in_pack.clear()

    def _may_be_base(self, address: bytes) -> bool:
        """Whether others may be told from the object that is to be put: it was there before, and cannot be read, or
        something else cannot, or a pack has vanished. A base must not be told from another one itself.
        """
        return self._lacks_packs or bool(self.unreadable or self.index.doubted) or self._find(address) is not None

    def _base(self, kind: Kind, near: bytes) -> tuple[bytes, bytes] | None:
        """Address and content of the object that a difference may be told from: the one named, or its own base. None
        if there is none, or it cannot be read.
        """
        address = address_of(near, self._keys.hash)
        found = self._find(address)
        if found is not None and found.base is not None:
            address, found = found.base, self._find(found.base)
        if found is None or found.kind != kind:
            return None
        try:
            return address, self._read(address, kind)
        except StoreDamaged:  # it is not needed; whoever needs it is told
            return None

    def _find(self, address: bytes) -> Found | None:
        return self._in_pack.get(address) or super()._find(address)

    def _payload(self, address: bytes, found: Found) -> bytes:
        if self._pack_now is not None and address in self._in_pack:
            return self._pack_now.read(found, row_of(address, found).about)
        return super()._payload(address, found)
