"""Folders as objects: TREE, LIST and ROOT, their bytes and what they may say (docs/format.md).

All are MessagePack arrays in their shortest form, so that the same folder has the same digest wherever it is read.
Whatever is decoded may be of hostile origin: it is checked here, once, so that nobody who has an TreeEntry needs to.
"""

import stat
import zlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from waypoint.store.packs.digests import DIGEST_BYTES

MOST_INLINE = 128
"""Rows that an entry has itself. More of them are in objects LIST."""
_MOST_NAME = 255
_MOST_XATTR = 1 << 16
_LEAST_PART, _MOST_PART = 64, 4096
_MOST_PART_BYTES = 4 << 20
_MOST_LIST = 4096
MOST_CODED = 8 << 20
"""Bytes of a TREE, LIST or ROOT: decoded, one takes twenty times as much memory at most. A file with more attributes
than fits into that is not taken (gathering.put_trees).
"""
MOST_LINKS = 64 << 20
"""Bytes of the names of files that have several, in the form of `encode_links`."""
_INT64 = 1 << 63
_NOBODYS = (1 << 32) - 1  # which chown(2) takes for "as it is"
_LEAST_TIME, _MOST_TIME = -_INT64, (1 << 64) - 1

Piece = tuple[bytes | None, int]
"""A piece of content: the digest of the object that it is in, None for a hole; and its length in bytes."""

REGULAR, FOLDER, LINK, CHARACTER, BLOCK, FIFO, SOCKET = range(7)
_TYPES = {
    stat.S_IFREG: REGULAR,
    stat.S_IFDIR: FOLDER,
    stat.S_IFLNK: LINK,
    stat.S_IFCHR: CHARACTER,
    stat.S_IFBLK: BLOCK,
    stat.S_IFIFO: FIFO,
    stat.S_IFSOCK: SOCKET,
}


class TreeEntry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One name in a folder.

    `kind`: REGULAR, ... `mtime`: in nanoseconds since the epoch. `xattrs`: sorted by name. `rows`: the content of a
    file, in order; of a folder, the digests of its TREEs, each with the number of its entries. `lists`: whether the
    rows are those of LISTs, which have the rows of the file. `text`: where a link leads; of a device, its major and
    minor number, of four bytes each.
    """

    name: bytes
    kind: int
    mode: int
    uid: int
    gid: int
    mtime: int
    xattrs: list[tuple[bytes, bytes]]
    rows: list[Piece]
    lists: bool = False
    text: bytes = b""

    @property
    def size(self) -> int:
        """Of a file, in bytes."""
        return sum(length for _, length in self.rows)


class Root(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A whole folder. `entry`: its own, without a name. `links`: names that are one file, as the content of a file in
    the form of `encode_links`.
    """

    entry: TreeEntry
    links: list[Piece]


_TREES = msgspec.msgpack.Decoder(list[TreeEntry])
_LISTS = msgspec.msgpack.Decoder(list[Piece])
_ROOTS = msgspec.msgpack.Decoder(Root)
_LINKS = msgspec.msgpack.Decoder(list[list[bytes]])


class BadTree(Exception):
    """An object is no TREE, LIST or ROOT that Waypoint would write, in words."""


def kind_of(mode: int) -> int:
    """REGULAR, ... of `st_mode`."""
    return _TYPES[stat.S_IFMT(mode)]


def kept_time(mtime: int) -> int:
    """The time, in nanoseconds since the epoch, as it is written: one that MessagePack has no number for (before 1677,
    after 2554) becomes the nearest that it has one for.
    """
    return min(max(mtime, _LEAST_TIME), _MOST_TIME)


def encode_rows(rows: list[Piece]) -> bytes:
    """A LIST."""
    return msgspec.msgpack.encode(rows)


def encode_root(root: Root) -> bytes:
    return msgspec.msgpack.encode(root)


def encode_links(groups: Iterable[list[bytes]]) -> bytes:
    """For each file that has several names, these names: paths from the root, sorted; so are the files."""
    return msgspec.msgpack.encode(sorted(sorted(group) for group in groups))


def split(entries: list[TreeEntry]) -> Iterator[tuple[bytes, int]]:
    """The TREEs of a folder with these entries: the bytes of each, and how many entries it has.

    Where one ends depends on the names near by alone, so a change in a large folder changes one or two TREEs.
    """
    part: list[bytes] = []
    size = 0
    for entry in sorted(entries, key=lambda entry: entry.name):
        encoded = msgspec.msgpack.encode(entry)
        part.append(encoded)
        size += len(encoded)
        is_end = len(part) >= _LEAST_PART and zlib.crc32(entry.name) % 256 == 0
        if is_end or len(part) >= _MOST_PART or size >= _MOST_PART_BYTES:
            yield _array(part), len(part)
            part, size = [], 0
    if part:
        yield _array(part), len(part)


def split_rows(rows: list[Piece]) -> Iterator[list[Piece]]:
    """The rows of each LIST of a file. Where one ends depends on the content near by alone."""
    part: list[Piece] = []
    for row in rows:
        part.append(row)
        digest = row[0]
        if len(part) >= _MOST_LIST or (len(part) >= _LEAST_PART and digest is not None and digest[0] == 0):
            yield part
            part = []
    if part:
        yield part


def decode_tree(content: bytes) -> list[TreeEntry]:
    """The entries of a TREE, sorted by name. Raises BadTree."""
    entries = _decoded(content, _TREES)
    if len(entries) > _MOST_PART:
        raise BadTree(f"it has {len(entries)} names")
    last = b""
    for entry in entries:
        if not _is_name(entry.name) or entry.name <= last:
            raise BadTree(f"a name that cannot be, or is not in its place: {entry.name[:300]!r}")
        last = entry.name
        _check(entry)
    return entries


def decode_rows(content: bytes) -> list[Piece]:
    """The rows of a LIST. Raises BadTree."""
    rows = _decoded(content, _LISTS)
    if len(rows) > _MOST_LIST:
        raise BadTree(f"it has {len(rows)} rows")
    _check_rows(rows, empty=True)
    return rows


def decode_root(content: bytes) -> Root:
    """Raises BadTree."""
    root = _decoded(content, _ROOTS)
    if root.entry.name or root.entry.kind != FOLDER:
        raise BadTree("its root is no folder")
    _check(root.entry)
    _check_rows(root.links, empty=False)
    return root


def decode_links(content: bytes) -> list[list[bytes]]:
    """Groups of paths that are one file each. Raises BadTree."""
    groups = _decoded(content, _LINKS, MOST_LINKS)
    for group in groups:
        if len(group) < 2 or not all(_is_name(name) for path in group for name in path.split(b"/")):
            raise BadTree("a file with a name that cannot be")
    return groups


Some = TypeVar("Some")


def _decoded(content: bytes, decoder: "msgspec.msgpack.Decoder[Some]", most: int | None = None) -> Some:
    """`most`: how many bytes it may have; None: MOST_CODED."""
    if len(content) > (MOST_CODED if most is None else most):
        raise BadTree(f"it has {len(content)} bytes")
    try:
        return decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise BadTree(str(error)) from error


def _array(parts: list[bytes]) -> bytes:
    """The MessagePack array of these encoded values."""
    count = len(parts)
    if count < 16:
        head = bytes([0x90 | count])
    else:
        head = b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)
    return head + b"".join(parts)


def _is_name(name: bytes) -> bool:
    return 0 < len(name) <= _MOST_NAME and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def _check(entry: TreeEntry) -> None:
    if entry.kind not in range(7) or not 0 <= entry.mode <= 0o7777:
        raise BadTree(f"{entry.name!r} is of no kind that there is")
    if not (0 <= entry.uid < _NOBODYS and 0 <= entry.gid < _NOBODYS):
        raise BadTree(f"{entry.name!r} belongs to nobody who can be")
    if any(not 0 < len(name) <= _MOST_NAME or b"\0" in name for name, _ in entry.xattrs):
        raise BadTree(f"an attribute of {entry.name!r} has no name that can be")
    if any(len(value) > _MOST_XATTR for _, value in entry.xattrs):
        raise BadTree(f"an attribute of {entry.name!r} is too long")
    _check_rows(entry.rows, empty=entry.kind == REGULAR and not entry.lists)
    if entry.kind == REGULAR and not entry.lists and len(entry.rows) > MOST_INLINE:
        raise BadTree(f"{entry.name!r} has more parts than a name has itself")
    if (entry.rows and entry.kind not in (REGULAR, FOLDER)) or (entry.lists and entry.kind != REGULAR):
        raise BadTree(f"{entry.name!r} has content, which its kind has not")
    _check_text(entry)


def _check_text(entry: TreeEntry) -> None:
    if entry.kind == LINK:
        is_right = 0 < len(entry.text) < 4096 and b"\0" not in entry.text
    elif entry.kind in (CHARACTER, BLOCK):
        is_right = len(entry.text) == 8
    else:
        is_right = not entry.text
    if not is_right:
        raise BadTree(f"{entry.name!r} leads to what cannot be")


def _check_rows(rows: list[Piece], *, empty: bool) -> None:
    """`empty`: whether a row may be a hole."""
    if sum(length for _, length in rows) >= _INT64:
        raise BadTree("parts of a length that cannot be")
    for digest, length in rows:
        if digest is None and not empty:
            raise BadTree("a part without a digest")
        if (digest is not None and len(digest) != DIGEST_BYTES) or not 0 < length < _INT64:
            raise BadTree("a part of no length that can be")
