"""Looking for damage: whether everything that a store should have is there, and is what was written."""

import contextlib
import os
from collections.abc import Iterator

from waypoint.model.errors import StoreDamaged
from waypoint.store.content import damage
from waypoint.store.content.object_reader import ObjectReader
from waypoint.store.content.opened import Store
from waypoint.store.packs.ciphers import WrongBytes
from waypoint.store.packs.pack_format import NotAPack, digest_of_pack, read_directory
from waypoint.store.packs.pack_index import Copy


def check_packs(store: Store, *, read_data: bool) -> Iterator[str]:
    """In words, what is wrong with the packs. Without `read_data`: whether each is whole by its beginning and end. With
    it: every byte, and every object; what cannot be read is noted, and what can be again is no more. Raises Failed.
    """
    with store.reading() as reader:
        yield from store.unread
        for name, size in sorted(reader.index.packs().items()):
            path = store.folder.pack(name)
            said = _wrong_with(path, name, size, store.keys.seal, whole=read_data)
            if said:
                yield f"{path}: {said}"
            for address, _ in reader.index.objects(name) if read_data else ():
                try:
                    reader.check(address)
                except StoreDamaged as error:
                    yield str(error).partition("\n")[0]
        if read_data:
            with contextlib.suppress(OSError):  # a full disk: what was found is told all the same
                damage.note(store.folder, (), list(_readable(store, reader)))


def check_sizes(store: Store) -> Iterator[str]:
    """As `check_packs`, but of each pack only the length is looked at; and whether damage is known. Raises Failed."""
    with store.reading() as reader:
        yield from store.unread
        for name, size in sorted(reader.index.packs().items()):
            found = os.stat(store.folder.pack(name)).st_size
            if found != size:
                yield f"{store.folder.pack(name)}: it has {found} bytes, {size} were written"
        if doubted := len(reader.index.doubted):
            yield f"{doubted} objects could not be read when that was tried last"


def read_doubted(store: Store) -> None:
    """Read what could not be read when that was tried last; what can be again is noted no more. Raises Failed."""
    with store.reading() as reader:
        doubted = reader.index.doubted
        for address in doubted:
            with contextlib.suppress(StoreDamaged, OSError):
                reader.check(address)
        readable = [copy for copy in _readable(store, reader) if copy[0] in doubted]
        with contextlib.suppress(OSError):  # a full disk: they are read again
            damage.note(store.folder, (), readable)


def _readable(store: Store, reader: ObjectReader) -> Iterator[Copy]:
    """Of the copies that were noted those that were read now. Not what is read from another pack."""
    for address, pack in damage.known(store.folder) - reader.unreadable:
        found = reader.index.find(address)
        if not pack or (found is not None and found.pack == pack):
            yield address, pack


def _wrong_with(path: str, name: str, size: int, key: bytes, *, whole: bool) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            fd = file.fileno()
            _, trailer = read_directory(fd, key)
            if trailer.digest.hex() != name or os.fstat(fd).st_size != size:
                return "it is another pack than its name says"
            if whole and digest_of_pack(fd) != trailer.digest:
                return "its bytes are not those that were written"
    except (NotAPack, WrongBytes, OSError) as error:
        return str(error) or "its bytes are not those that were written"
    return ""
