"""The records of folders in the store, and their bytes: TREE, LIST and ROOT objects (docs/format.md).

MessagePack arrays in their shortest form, so that equal folders have equal digests. Decoding checks everything, since
the bytes may come from elsewhere: users of a TreeEntry need no checks.
"""

import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from waypoint.store.objects import DIGEST_BYTES

MAX_INLINE_ROWS = 64
"""Rows in an entry itself. More of them are in LIST objects."""
MAX_CODED_BYTES = 8 << 20
"""Of a TREE, LIST or ROOT; decoding takes up to twenty times as much memory."""
MAX_LINKS_BYTES = 64 << 20
"""Of the paths of all files with several names."""
MAX_PARTS = 4096
"""Entries of a TREE, rows of a LIST."""
_MIN_PARTS = 16
_END_EVERY = 64  # a TREE or LIST has as many parts on average, besides the minimum
_MAX_TREE_BYTES = 4 << 20
_MAX_NAME_BYTES = 255
_MAX_XATTR_BYTES = 1 << 16
_INT64 = 1 << 63
_NO_ID = (1 << 32) - 1  # chown(2) takes it for "unchanged"
_MIN_TIME, _MAX_TIME = -_INT64, (1 << 64) - 1  # that MessagePack has numbers for

Row = tuple[bytes | None, int]
"""A part: the digest of its object, None for a hole; and its length: bytes of a file, entries of a folder."""

FILE, FOLDER, SYMLINK, CHARACTER, BLOCK, FIFO, SOCKET = range(7)
_TYPES = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFLNK: SYMLINK,
    stat.S_IFCHR: CHARACTER,
    stat.S_IFBLK: BLOCK,
    stat.S_IFIFO: FIFO,
    stat.S_IFSOCK: SOCKET,
}


class TreeEntry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One name in a folder.

    `type`: FILE, FOLDER, ... `mtime`: nanoseconds since the epoch. `xattrs`: sorted by name; overlayfs's marks and ACLs
    are among them. `rows`: of a file its DATA objects and holes in order, of a folder its TREEs. `lists`: whether the
    rows are LISTs, which have these rows. `text`: the target of a symlink; of a device its major and minor number, four
    bytes each.
    """

    name: bytes
    type: int
    mode: int
    uid: int
    gid: int
    mtime: int
    xattrs: list[tuple[bytes, bytes]]
    rows: list[Row]
    lists: bool = False
    text: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of a file, entries of a folder."""
        return sum(length for _, length in self.rows)


class Root(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A folder with all its content. `entry`: its own entry, without a name. `links`: DATA objects with the bytes of
    `encode_links`.
    """

    entry: TreeEntry
    links: list[Row]


class BadTree(Exception):
    """An object is no TREE, LIST or ROOT that Waypoint would write."""


def type_of(mode: int) -> int:
    """FILE, FOLDER, ... from `st_mode`."""
    return _TYPES[stat.S_IFMT(mode)]


def storable_time(mtime: int) -> int:
    """The nearest time that can be stored: from the year 1677 to 2554."""
    return min(max(mtime, _MIN_TIME), _MAX_TIME)


Part = TypeVar("Part")


def _split(parts: Iterable[Part], ends: Callable[[Part], bool]) -> Iterator[list[Part]]:
    """Split by content: where a group ends depends only on the parts near by, so a change affects one or two groups."""
    group: list[Part] = []
    for part in parts:
        group.append(part)
        if len(group) >= MAX_PARTS or (len(group) >= _MIN_PARTS and ends(part)):
            yield group
            group = []
    if group:
        yield group


def split_entries(entries: Iterable[TreeEntry]) -> Iterator[list[TreeEntry]]:
    """The entries of each TREE of a folder, sorted by name."""
    size = 0

    def ends(entry: TreeEntry) -> bool:
        nonlocal size
        size += sum(len(value) for _, value in entry.xattrs) + 40 * len(entry.rows)
        is_end = zlib.crc32(entry.name) % _END_EVERY == 0 or size > _MAX_TREE_BYTES
        size = 0 if is_end else size
        return is_end

    return _split(sorted(entries, key=lambda entry: entry.name), ends)


def split_rows(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows of each LIST."""
    return _split(rows, lambda row: row[0] is not None and row[0][0] % _END_EVERY == 0)


def encode(record: list[TreeEntry] | list[Row] | Root) -> bytes:
    """The bytes of a TREE, a LIST or a ROOT."""
    return msgspec.msgpack.encode(record)


def encode_links(groups: Iterable[Iterable[bytes]]) -> bytes:
    """For each file with several names, the paths of these names from the root."""
    return msgspec.msgpack.encode(sorted(sorted(group) for group in groups))


_TREES = msgspec.msgpack.Decoder(list[TreeEntry])
_LISTS = msgspec.msgpack.Decoder(list[Row])
_ROOTS = msgspec.msgpack.Decoder(Root)
_LINKS = msgspec.msgpack.Decoder(list[list[bytes]])


def decode_tree(content: bytes) -> list[TreeEntry]:
    """Return the entries of a TREE, sorted by name. Raises BadTree, as all functions below."""
    entries = _decoded(content, _TREES)
    if len(entries) > MAX_PARTS:
        raise BadTree(f"it has {len(entries)} names")
    last = b""
    for entry in entries:
        if not _is_name(entry.name) or entry.name <= last:
            raise BadTree(f"a name that is impossible or not in order: {entry.name[:300]!r}")
        last = entry.name
        _check(entry)
    return entries


def decode_list(content: bytes) -> list[Row]:
    rows = _decoded(content, _LISTS)
    if len(rows) > MAX_PARTS:
        raise BadTree(f"it has {len(rows)} rows")
    _check_rows(rows, holes=True)
    return rows


def decode_root(content: bytes) -> Root:
    root = _decoded(content, _ROOTS)
    if root.entry.name or root.entry.type != FOLDER:
        raise BadTree("its root is no folder")
    _check(root.entry)
    _check_rows(root.links, holes=False)
    return root


def decode_links(content: bytes) -> list[list[bytes]]:
    groups = _decoded(content, _LINKS, MAX_LINKS_BYTES)
    seen: set[bytes] = set()
    for group in groups:
        if len(group) < 2 or not all(_is_name(name) for path in group for name in path.split(b"/")):
            raise BadTree("a file has an impossible name")
        if not seen.isdisjoint(group) or len(set(group)) != len(group):
            raise BadTree("two files have the same name")
        seen.update(group)
    return groups


Some = TypeVar("Some")


def _decoded(content: bytes, decoder: "msgspec.msgpack.Decoder[Some]", most: int = MAX_CODED_BYTES) -> Some:
    if len(content) > most:
        raise BadTree(f"it has {len(content)} bytes")
    try:
        return decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise BadTree(str(error)) from error


def _is_name(name: bytes) -> bool:
    return 0 < len(name) <= _MAX_NAME_BYTES and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def _check(entry: TreeEntry) -> None:
    if entry.type not in range(7) or not 0 <= entry.mode <= 0o7777:
        raise BadTree(f"{entry.name!r} has an unknown type or mode")
    if not (0 <= entry.uid < _NO_ID and 0 <= entry.gid < _NO_ID) or not _MIN_TIME <= entry.mtime <= _MAX_TIME:
        raise BadTree(f"{entry.name!r} has an impossible owner or time")
    for name, value in entry.xattrs:
        if not 0 < len(name) <= _MAX_NAME_BYTES or b"\0" in name or len(value) > _MAX_XATTR_BYTES:
            raise BadTree(f"{entry.name!r} has an impossible attribute")
    if (entry.rows or entry.lists) and entry.type not in (FILE, FOLDER):
        raise BadTree(f"{entry.name!r} is no file or folder, but has content")
    _check_rows(entry.rows, holes=entry.type == FILE and not entry.lists)
    if entry.type == SYMLINK:
        is_right = 0 < len(entry.text) < 4096 and b"\0" not in entry.text
    else:
        is_right = len(entry.text) == (8 if entry.type in (CHARACTER, BLOCK) else 0)
    if not is_right:
        raise BadTree(f"{entry.name!r} has an impossible target or device number")


def _check_rows(rows: list[Row], *, holes: bool) -> None:
    if sum(length for _, length in rows) >= _INT64:
        raise BadTree("its parts are too long")
    for digest, length in rows:
        if not 0 < length < _INT64 or (digest is None and not holes) or (digest and len(digest) != DIGEST_BYTES):
            raise BadTree("a part has an impossible digest or length")
