"""Reading objects of a store. What is returned has been checked: it is what was written, or StoreDamaged is raised."""

import contextlib
import errno
import os
from collections import OrderedDict

from waypoint.model.errors import DISK_FAILED, StoreDamaged
from waypoint.store.content.keys import Keys
from waypoint.store.content.store_folder import StoreFolder
from waypoint.store.packs import pack_format
from waypoint.store.packs.ciphers import Cipher, WrongBytes
from waypoint.store.packs.codecs import CannotDecode, Codec, Encoded, decode, encode
from waypoint.store.packs.digests import Kind, address_of, digest_of
from waypoint.store.packs.pack_format import HEADER_BYTES, NotAPack, PackRow
from waypoint.store.packs.pack_index import Copy, Found, PackIndex

_MOST_OPEN = 32
"""Packs at a time."""
ANOTHER = "go back to another capture ('waypoint log --all' lists them)"


class ObjectReader:
    """Reads the objects of one store, while its packs are held (`Store.reading`). One thread at a time. `index`: where
    they are. `unreadable`: what could not be read so far.
    """

    def __init__(self, folder: StoreFolder, index: PackIndex, keys: Keys) -> None:
        self._folder = folder
        self.index = index
        self._keys = keys
        self.unreadable: set[Copy] = set()
        self._open: OrderedDict[str, tuple[int, Cipher]] = OrderedDict()

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1][0])

    def has(self, digest: bytes) -> bool:
        """Whether the store has the object, and what it is told from. What is doubted is read: can it be?"""
        address, doubted = address_of(digest, self._keys.hash), self.index.doubted
        found = self._find(address)
        if found is None:
            return False
        base = found.base
        if address in doubted or (base is not None and (base in doubted or self._find(base) is None)):
            try:
                self._read(address, Kind(found.kind))
            except (StoreDamaged, OSError):
                return False
        return True

    def get(self, kind: Kind, digest: bytes) -> bytes:
        """The content of the object. Raises StoreDamaged if the store does not have it, or has something else in its
        place, or it lies where the disk cannot be read; OSError for what else has happened.
        """
        return self._read(address_of(digest, self._keys.hash), kind)

    def alone(self, kind: Kind, digest: bytes) -> tuple[int, Encoded]:
        """The object for who has no other one: the length of its content, and this as RAW or ZSTD. Raises as `get`."""
        address = address_of(digest, self._keys.hash)
        content, found = self._read(address, kind), self._find(address)
        if found is None or found.base is not None:
            return len(content), encode(content)
        return len(content), Encoded(Codec(found.codec), self._payload(address, found))

    def stored_size(self, digest: bytes) -> int:
        """The bytes that the object takes of the store; 0 if it is not there."""
        found = self._find(address_of(digest, self._keys.hash))
        return found.stored if found is not None else 0

    def payload(self, address: bytes, found: Found) -> tuple[PackRow, bytes]:
        """The object as it is written to a pack, for who writes it to another one; checked. Raises StoreDamaged."""
        self._read(address, Kind(found.kind))
        return row_of(address, found), self._payload(address, found)

    def check(self, address: bytes) -> None:
        """Read the object at `address`, of whatever kind. Raises StoreDamaged, OSError."""
        found = self._find(address)
        if found is None:
            raise _damaged(address, "it is not there")
        self._read(address, Kind(found.kind))

    def _find(self, address: bytes) -> Found | None:
        return self.index.find(address)

    def _read(self, address: bytes, kind: Kind) -> bytes:
        found = self._find(address)
        if found is None:
            raise _damaged(address, "it is not there")
        if found.kind != kind:
            raise _damaged(address, f"it is a {Kind(found.kind).name.lower()}, not a {kind.name.lower()}")
        try:
            content = self._decoded(address, found)
            if address_of(digest_of(kind, content), self._keys.hash) != address:
                raise _damaged(address, "its content is another one")
        except (StoreDamaged, OSError):
            if found.pack and (address, found.pack) not in self.unreadable:
                self.unreadable.add((address, found.pack))
                if found.base is not None:  # perhaps it is that one
                    with contextlib.suppress(StoreDamaged, OSError):
                        self.check(found.base)
            raise
        return content

    def _decoded(self, address: bytes, found: Found) -> bytes:
        base = None
        if found.base is not None:
            below = self._find(found.base)
            if below is None or below.base is not None:  # a base is none itself, so this ends
                raise _damaged(address, "what it was made from is not there")
            base = self._decoded(found.base, below)
        try:
            return decode(Codec(found.codec), self._payload(address, found), found.length, base)
        except (WrongBytes, CannotDecode) as error:
            raise _damaged(address, f"its bytes are not those that were written {error}".strip()) from error

    def _payload(self, address: bytes, found: Found) -> bytes:
        try:
            fd, cipher = self._pack(address, found.pack)
            payload = os.pread(fd, found.stored, found.offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # A part of the disk that cannot be read: it is damage, and others may be read, or be put again.
            raise _damaged(address, os.strerror(errno.EIO), DISK_FAILED) from error
        if len(payload) != found.stored:
            raise _damaged(address, "its pack ends before it")
        return cipher.open(found.slot, payload, row_of(address, found).about)

    def _pack(self, address: bytes, name: str) -> tuple[int, Cipher]:
        with contextlib.suppress(KeyError):
            self._open.move_to_end(name)
            return self._open[name]
        try:
            fd = os.open(self._folder.pack(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise _damaged(address, f"the pack {name} is not there") from error
        try:
            cipher = pack_format.read_header(os.pread(fd, HEADER_BYTES, 0), self._keys.seal)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, NotAPack | WrongBytes):
                raise _damaged(address, f"the pack {name} is none: {error}") from error
            raise
        if len(self._open) >= _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1][0])
        self._open[name] = fd, cipher
        return fd, cipher


def row_of(address: bytes, found: Found) -> PackRow:
    """The row in the pack's directory that tells of the object."""
    return PackRow(address, found.kind, found.codec, found.stored, found.length, found.base)


def _damaged(address: bytes, said: str, next_step: str = ANOTHER) -> StoreDamaged:
    return StoreDamaged("read", f"the object {address.hex()[:16]} of the store", said, next_step)
