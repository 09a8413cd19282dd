"""Stores for tests."""

import random
from collections.abc import Iterable
from pathlib import Path

from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import Store, make_store, open_store
from waypoint.store.packs.digests import Kind

SECRET = b"a secret for tests"


def contents(seed: int, count: int, size: int = 5000) -> list[bytes]:
    """As many different contents, half of which get shorter."""
    pick = random.Random(seed)
    return [pick.randbytes(size) if number % 2 else b"%d %d " % (seed, number) * (size // 8) for number in range(count)]


def put_all(store: Store, many: Iterable[bytes]) -> list[bytes]:
    with store.writing("test") as writer:
        digests = [writer.put(Kind.DATA, one) for one in many]
        writer.commit()
    return digests


def get_all(store: Store, digests: Iterable[bytes]) -> list[bytes]:
    with store.reading() as reader:
        return [reader.get(Kind.DATA, digest) for digest in digests]


def add_image(store: Store, manifest: bytes) -> str:
    with store.writing("test"):
        return store.images.add(ImageFile(manifest, b"about it"))


def new_store(folder: Path, *, encrypted: bool = False) -> Store:
    return make_store(str(folder), SECRET if encrypted else b"")


def opened_again(store: Store) -> Store:
    store.close()
    return open_store(store.folder.folder, SECRET if store.cipher else b"")
