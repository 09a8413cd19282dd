"""The objects of an export that have come so far. Each must come once, after all that it refers to: so what refers to
itself, or to what is not there, is found as it comes, and nothing that does has to be kept.
"""

from typing import NamedTuple

from waypoint.store.exports import export_format
from waypoint.store.exports.export_format import NotAnExport
from waypoint.store.packs.digests import Kind
from waypoint.store.trees import entries
from waypoint.store.trees.entries import BadTree, Piece, TreeEntry

_WHITEOUT = bytes(8)
_NEEDED = 8
_LENGTH_AT = 4

LINKS, SPECIAL, WHITEOUTS, DEVICES = 1, 2, 4, 8
"""What a folder may have besides files and folders: symbolic links; FIFOs and sockets; the marks of overlayfs for what
is removed; devices.
"""
_ODD = {entries.LINK: LINKS, entries.FIFO: SPECIAL, entries.SOCKET: SPECIAL, entries.BLOCK: DEVICES}


class Weight(NamedTuple):
    """What a folder is on disk, with all below. `names`, `size`: how many, and the bytes of files, with what is in
    several places counted each time; `whole`: with their holes. `odd`: LINKS, ...
    """

    names: int
    size: int
    whole: int
    odd: int


class Arrived:
    """Checks each object as it comes. All calls raise NotAnExport."""

    def __init__(self) -> None:
        # By digest: the kind, whether something refers to it, and the length that a row tells of it.
        self._known: dict[bytes, int] = {}
        self._weights: dict[bytes, Weight] = {}

    @property
    def count(self) -> int:
        return len(self._known)

    def add(self, kind: Kind, digest: bytes, content: bytes) -> None:
        """`content` is that of the object with this digest."""
        if digest in self._known:
            raise NotAnExport(f"it has the object {digest.hex()[:16]} twice")
        if len(self._known) >= export_format.MOST_OBJECTS:
            raise NotAnExport(f"it has more than {export_format.MOST_OBJECTS} objects")
        try:
            length = self._look_at(kind, digest, content)
        except BadTree as error:
            raise NotAnExport(f"a {kind.name.lower()} of it tells what cannot be: {error}") from error
        self._known[digest] = kind | length << _LENGTH_AT

    def weight(self, root: bytes) -> Weight:
        """Of a ROOT that has come."""
        self._refer(Kind.ROOT, root, 0)
        return self._weights[root]

    def unneeded(self) -> bool:
        """Whether nothing refers to some of them."""
        return any(not one & _NEEDED for one in self._known.values())

    def _look_at(self, kind: Kind, digest: bytes, content: bytes) -> int:
        """Note what is to be known of it besides the length that rows tell of it, which is returned."""
        if kind == Kind.LIST:
            rows = entries.decode_rows(content)
            self._refer_rows(Kind.DATA, rows)
            return sum(length for _, length in rows)
        if kind == Kind.TREE:
            inside = entries.decode_tree(content)
            self._weights[digest] = _sum([self._entry(entry) for entry in inside])
            return len(inside)
        if kind == Kind.ROOT:
            root = entries.decode_root(content)
            self._refer_rows(Kind.DATA, root.links)
            self._weights[digest] = self._entry(root.entry)
            return 0
        return len(content)

    def _entry(self, entry: TreeEntry) -> Weight:
        if entry.kind == entries.FOLDER:
            self._refer_rows(Kind.TREE, entry.rows)
            below = _sum([self._weights[digest] for digest, _ in entry.rows if digest is not None])
            return below._replace(names=below.names + 1)
        if entry.kind == entries.REGULAR:
            self._refer_rows(Kind.LIST if entry.lists else Kind.DATA, entry.rows)
            size = sum(length for digest, length in entry.rows if digest is not None)
            return Weight(1, size, sum(length for _, length in entry.rows), 0)
        if entry.kind == entries.CHARACTER:
            return Weight(1, 0, 0, WHITEOUTS if entry.text == _WHITEOUT else DEVICES)
        return Weight(1, 0, 0, _ODD[entry.kind])

    def _refer_rows(self, kind: Kind, rows: list[Piece]) -> None:
        for digest, length in rows:
            if digest is not None:
                self._refer(kind, digest, length)

    def _refer(self, kind: Kind, digest: bytes, length: int) -> None:
        found = self._known.get(digest)
        if found is None:
            raise NotAnExport(f"it refers to the object {digest.hex()[:16]}, which has not come before")
        if found & 7 != kind or found >> _LENGTH_AT != length:
            raise NotAnExport(f"it refers to the object {digest.hex()[:16]} as another one than it is")
        self._known[digest] = found | _NEEDED


def _sum(weights: list[Weight]) -> Weight:
    odd = 0
    for one in weights:
        odd |= one.odd
    names, size = sum(one.names for one in weights), sum(one.size for one in weights)
    return Weight(names, size, sum(one.whole for one in weights), odd)
