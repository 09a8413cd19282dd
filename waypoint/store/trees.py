"""Reading folders that are in the store."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from waypoint.model.errors import StoreDamaged
from waypoint.store import entries
from waypoint.store.entries import BadTree, Root, Row, TreeEntry
from waypoint.store.manifest import ANOTHER
from waypoint.store.objects import Kind
from waypoint.store.store import Reader

Decoded = TypeVar("Decoded")


def read_root(reader: Reader, digest: bytes) -> Root:
    """Raises StoreDamaged, as all functions here."""
    return _read_as(reader, Kind.ROOT, digest, entries.decode_root)


def read_entries(reader: Reader, folder: TreeEntry) -> list[TreeEntry]:
    """The entries of a folder, sorted by name."""
    found: list[TreeEntry] = []
    for digest, length in read_rows(reader, folder):
        part = _read_as(reader, Kind.TREE, digest or b"", entries.decode_tree)
        if len(part) != length or (found and part and part[0].name <= found[-1].name):
            raise damaged("a folder has other entries than its record says")
        found += part
    return found


def read_rows(reader: Reader, entry: TreeEntry) -> list[Row]:
    """The rows of a file or folder."""
    if not entry.lists:
        return entry.rows
    rows: list[Row] = []
    for digest, length in entry.rows:
        part = _read_as(reader, Kind.LIST, digest or b"", entries.decode_list)
        if sum(one for _, one in part) != length:
            raise damaged("a list has another length than its record says")
        if entry.type == entries.FOLDER and any(one is None for one, _ in part):
            raise damaged("a folder has a hole")
        rows += part
    return rows


def read_part(reader: Reader, row: Row) -> bytes:
    """The content of a part of a file that is no hole."""
    return next(read_parts(reader, [row]))


def read_parts(reader: Reader, rows: Sequence[Row]) -> Iterator[bytes]:
    """The content of the parts of a file, without the holes."""
    lengths = [length for digest, length in rows if digest is not None]
    contents = reader.get_each(Kind.DATA, [digest for digest, _ in rows if digest is not None])
    for content, length in zip(contents, lengths, strict=True):
        if len(content) != length:
            raise damaged("a part of a file has another length than its record says")
        yield content


def read_links(reader: Reader, root: Root) -> list[list[bytes]]:
    """For each file with several names, the paths of these names."""
    if not root.links:
        return []
    if sum(length for _, length in root.links) > entries.MAX_LINKS_BYTES:
        raise damaged("the names of hard links are too long")
    try:
        return entries.decode_links(b"".join(read_part(reader, row) for row in root.links))
    except BadTree as error:
        raise damaged(str(error)) from error


def read_path(reader: Reader, root: bytes, path: bytes) -> TreeEntry | None:
    """The entry at `path` in the folder; None if there is none."""
    entry: TreeEntry | None = read_root(reader, root).entry
    for name in path.split(b"/"):
        if entry is None or entry.type != entries.FOLDER:
            return None
        entry = next((one for one in read_entries(reader, entry) if one.name == name), None)
    return entry


def read_content(reader: Reader, entry: TreeEntry, max_bytes: int) -> bytes:
    """The content of a file. Raises StoreDamaged if it has more than `max_bytes`."""
    if entry.size > max_bytes:
        raise damaged(f"{entry.name!r} has {entry.size} bytes")
    rows = read_rows(reader, entry)
    return b"".join(bytes(row[1]) if row[0] is None else read_part(reader, row) for row in rows)


def references(reader: Reader, kind: Kind, digest: bytes) -> Iterator[tuple[Kind, bytes]]:
    """The objects that an object refers to directly."""
    if kind == Kind.ROOT:
        root = read_root(reader, digest)
        yield from _of_entry(reader, root.entry)
        yield from ((Kind.DATA, one) for one, _ in root.links if one is not None)
    elif kind == Kind.TREE:
        for entry in _read_as(reader, kind, digest, entries.decode_tree):
            yield from _of_entry(reader, entry)


def _of_entry(reader: Reader, entry: TreeEntry) -> Iterator[tuple[Kind, bytes]]:
    """The LISTs of an entry, and its TREEs or DATA objects. A LIST does not tell which of these its rows are."""
    if entry.lists:
        yield from ((Kind.LIST, one) for one, _ in entry.rows if one is not None)
    kind = Kind.TREE if entry.type == entries.FOLDER else Kind.DATA
    yield from ((kind, one) for one, _ in read_rows(reader, entry) if one is not None)


def reachable(
    reader: Reader, roots: list[bytes], seen: set[bytes], on_damage: Callable[[StoreDamaged], None] | None = None
) -> Iterator[tuple[Kind, bytes]]:
    """All objects of these folders that are not in `seen`, which gets them. DATA objects are not read.

    `on_damage`: called for each object that cannot be read; without it StoreDamaged is raised.
    """
    waiting = [(Kind.ROOT, digest) for digest in roots]
    while waiting:
        kind, digest = waiting.pop()
        if digest in seen:
            continue
        seen.add(digest)
        yield kind, digest
        try:
            waiting += references(reader, kind, digest)
        except StoreDamaged as error:
            if on_damage is None:
                raise
            on_damage(error)


def damaged(said: str) -> StoreDamaged:
    return StoreDamaged("read", "a folder of the store", said, ANOTHER)


def _read_as(reader: Reader, kind: Kind, digest: bytes, decode: Callable[[bytes], Decoded]) -> Decoded:
    try:
        return decode(reader.get(kind, digest))
    except BadTree as error:
        raise StoreDamaged("read", f"{kind.name} {digest.hex()[:16]} of the store", str(error), ANOTHER) from error
