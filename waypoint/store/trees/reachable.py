"""What a ROOT consists of: every object that it refers to, directly or through others."""

from collections.abc import Iterable, Iterator

from waypoint.store.content.object_reader import ObjectReader
from waypoint.store.packs.digests import Kind
from waypoint.store.trees import entries
from waypoint.store.trees.earlier import read_as
from waypoint.store.trees.entries import Piece

Reached = tuple[Kind, bytes]


def reachable(reader: ObjectReader, roots: Iterable[bytes]) -> Iterator[Reached]:
    """Every object of these ROOTs, with its kind, once: digests. Those that refer to others are read, DATA is not.

    Raises StoreDamaged if one that refers to others is missing or is not what it should be; OSError.
    """
    waiting: list[Reached] = [(Kind.ROOT, digest) for digest in roots]
    seen: set[bytes] = set()
    while waiting:
        kind, digest = waiting.pop()
        if digest in seen:
            continue
        seen.add(digest)
        yield kind, digest
        waiting += _referred(reader, kind, digest)


def children_first(reader: ObjectReader, roots: Iterable[bytes]) -> Iterator[Reached]:
    """As `reachable`, each object after all that it refers to."""
    seen: set[bytes] = set()
    for root in roots:
        path = [(Kind.ROOT, root, _referred(reader, Kind.ROOT, root))]
        while path:
            kind, digest, below = path[-1]
            found = next((one for one in below if one[1] not in seen), None)
            if found is not None and found[0] != Kind.DATA:
                path.append((*found, _referred(reader, *found)))
                continue
            if found is None:
                found = kind, digest
                path.pop()
            if found[1] not in seen:
                seen.add(found[1])
                yield found


def _referred(reader: ObjectReader, kind: Kind, digest: bytes) -> Iterator[Reached]:
    if kind == Kind.ROOT:
        root = read_as(reader, kind, digest, entries.decode_root)
        yield from _objects(Kind.TREE, root.entry.rows)
        yield from _objects(Kind.DATA, root.links)
    elif kind == Kind.TREE:
        for entry in read_as(reader, kind, digest, entries.decode_tree):
            if entry.kind == entries.FOLDER:
                yield from _objects(Kind.TREE, entry.rows)
            else:
                yield from _objects(Kind.LIST if entry.lists else Kind.DATA, entry.rows)
    elif kind == Kind.LIST:
        yield from _objects(Kind.DATA, read_as(reader, kind, digest, entries.decode_rows))


def _objects(kind: Kind, rows: list[Piece]) -> Iterator[Reached]:
    return ((kind, digest) for digest, _ in rows if digest is not None)
