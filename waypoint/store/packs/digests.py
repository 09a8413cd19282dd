"""What content is called: its digest, the same everywhere, and its address, which has a meaning in one store alone."""

from enum import IntEnum

from blake3 import blake3

DIGEST_BYTES = 32
HashKey = bytes
"""Of 32 bytes. Each store has its own, so that nobody can tell from the addresses which known content a store has."""


class Kind(IntEnum):
    """What an object is. An object of one kind never has the digest of an object of another kind.

    DATA: bytes that mean nothing to the store. TREE: entries of a folder. LIST: a part of the rows of a long file.
    ROOT: a whole folder, with the names that its hard links have. MANIFEST: what an image consists of.
    """

    DATA = 0
    TREE = 1
    LIST = 2
    ROOT = 3
    MANIFEST = 4


_CONTEXTS = {kind: f"waypoint/store/1/{kind.name.lower()}" for kind in Kind}


def digest_of(kind: Kind, content: bytes | memoryview) -> bytes:
    """The digest of an object: BLAKE3 in the mode that derives keys, with a context for each kind."""
    return blake3(content, derive_key_context=_CONTEXTS[kind]).digest()


def address_of(digest: bytes, key: HashKey) -> bytes:
    """The address of the object with this digest: BLAKE3 of the digest, keyed."""
    return blake3(digest, key=key).digest()
