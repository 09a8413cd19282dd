"""A folder as the store has it: looked up by path, for what reads it, and for what may be alike in a newer one."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from waypoint.model.errors import StoreDamaged
from waypoint.store.content.object_reader import ANOTHER, ObjectReader
from waypoint.store.packs.digests import Kind
from waypoint.store.trees import entries
from waypoint.store.trees.entries import BadTree, Piece, Root, TreeEntry

_MOST_FOLDERS = 64
"""Kept at a time."""

NamePath = list[bytes]
"""A path from the root, name by name."""


class Earlier:
    """A ROOT, read as far as it is looked at. `digest`: empty for none: then nothing is found.

    All calls raise StoreDamaged, OSError.
    """

    def __init__(self, reader: ObjectReader, digest: bytes) -> None:
        self.digest = digest
        self._reader = reader
        self._folders: OrderedDict[tuple[bytes, ...], dict[bytes, TreeEntry]] = OrderedDict()
        self._root: Root | None = None

    def root(self) -> Root | None:
        if self._root is None and self.digest:
            self._root = read_as(self._reader, Kind.ROOT, self.digest, entries.decode_root)
        return self._root

    def find(self, path: NamePath) -> TreeEntry | None:
        """The entry at the path; None if there is none. The root's has no name."""
        if not path:
            root = self.root()
            return None if root is None else root.entry
        return self.inside(path[:-1]).get(path[-1])

    def inside(self, path: NamePath) -> dict[bytes, TreeEntry]:
        """The entries of the folder at the path, by name; none if there is no such folder."""
        depth = len(path)
        while depth and tuple(path[:depth]) not in self._folders:
            depth -= 1
        while True:  # not by calling itself: paths may be longer than Python goes deep
            inside = self._folder(path[:depth])
            if depth == len(path):
                return inside
            depth += 1

    def _folder(self, path: NamePath) -> dict[bytes, TreeEntry]:
        """As `inside`, if the folder above has been read."""
        key = tuple(path)
        if key in self._folders:
            self._folders.move_to_end(key)
            return self._folders[key]
        above = self._folders[key[:-1]].get(key[-1]) if key else self.find([])
        inside: dict[bytes, TreeEntry] = {}
        for digest, _ in above.rows if above is not None and above.kind == entries.FOLDER else ():
            if digest is not None:
                found = read_as(self._reader, Kind.TREE, digest, entries.decode_tree)
                inside.update((entry.name, entry) for entry in found)
        while len(self._folders) >= _MOST_FOLDERS:
            self._folders.popitem(last=False)
        self._folders[key] = inside
        return inside

    def trees(self, path: NamePath) -> list[Piece]:
        """The rows of the folder at the path; none if there is no such folder."""
        entry = self.find(path)
        return entry.rows if entry is not None and entry.kind == entries.FOLDER else []

    def content(self, path: NamePath) -> list[Piece]:
        """The rows of the content of the file at the path; none if there is no such file."""
        entry = self.find(path)
        return self.rows_of(entry) if entry is not None and entry.kind == entries.REGULAR else []

    def read(self, path: NamePath) -> bytes:
        """The content of the file at the path, which should be small; nothing if there is no such file."""
        return b"".join(self.piece(row) or bytes(row[1]) for row in self.content(path))

    def piece(self, row: Piece) -> bytes:
        """The content that the row of a file tells of; nothing for a hole."""
        digest, length = row
        content = self._reader.get(Kind.DATA, digest) if digest is not None else b""
        if digest is not None and len(content) != length:
            said = "a part of a file has another length than its folder says"
            raise StoreDamaged("read", "a folder of the store", said, ANOTHER)
        return content

    def rows_of(self, entry: TreeEntry) -> list[Piece]:
        """The rows of the content of a file."""
        if not entry.lists:
            return entry.rows
        rows: list[Piece] = []
        for digest, length in entry.rows:
            if digest is not None:
                found = read_as(self._reader, Kind.LIST, digest, entries.decode_rows)
                if sum(one for _, one in found) != length:
                    said = "a list of parts has another length than its folder says"
                    raise StoreDamaged("read", "a folder of the store", said, ANOTHER)
                rows += found
        return rows

    def links(self) -> list[Piece]:
        """The rows of what `link_groups` reads."""
        root = self.root()
        return [] if root is None else root.links

    def link_groups(self) -> list[list[bytes]]:
        """The paths of each file that has several names."""
        rows = self.links()
        if sum(length for _, length in rows) > entries.MOST_LINKS:
            raise StoreDamaged("read", "a folder of the store", "it names more links than can be", ANOTHER)
        content = b"".join(self.piece(row) for row in rows)
        try:
            return entries.decode_links(content) if content else []
        except BadTree as error:
            raise StoreDamaged("read", "a folder of the store", str(error), ANOTHER) from error


Decoded = TypeVar("Decoded")


def read_as(reader: ObjectReader, kind: Kind, digest: bytes, decode: Callable[[bytes], Decoded]) -> Decoded:
    """An object, decoded. Raises StoreDamaged also if it is none that `decode` takes; OSError."""
    content = reader.get(kind, digest)
    try:
        return decode(content)
    except BadTree as error:
        on = f"the {kind.name.lower()} {digest.hex()[:16]} of the store"
        raise StoreDamaged("read", on, str(error), ANOTHER) from error
