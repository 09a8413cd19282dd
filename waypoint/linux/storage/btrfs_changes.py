"""What has changed between two states of a btrfs subvolume, in a time that depends on the changes only.

btrfs notes in each inode, and in each entry of a folder, the transaction that changed it last. A snapshot has the
number of the transaction that made it. So everything with a higher number has changed since that snapshot, and a search
by transaction skips all parts of the tree that have not (linux/btrfs_tree.h).
"""

import contextlib
import errno
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.storage.btrfs_search import ITEM_HEADER_BYTES, Range, call, search
from waypoint.linux.storage.descriptors import open_folder

_IOC_INO_LOOKUP = 0xD0009412
_IOC_GET_SUBVOL_INFO = 0x81F8943C

_SHORT_SEARCH_BYTES = 1 << 12  # one item may have almost a page
_INODE_ITEM, _INODE_REF, _INODE_EXTREF, _DIR_INDEX, _EXTENT_DATA = 1, 12, 13, 96, 108
_MOST_EXTENTS = 1000  # of a file whose extents are compared
_EXTENT_BYTES = 53  # btrfs_file_extent_item with the place of the content
_GENERATION_BYTES = 8  # at the start of btrfs_file_extent_item: when the extent was written, or shared
_INODE = struct.Struct("<8xQ24xI8xI")  # btrfs_inode_item: ..., transaction, ..., count of names, ..., mode
_DIR_ENTRY = struct.Struct("<17xQ2xH1x")  # btrfs_dir_item: (key), transaction, (length), length of the name, (type)
_REF = struct.Struct("<8xH")  # btrfs_inode_ref: (index), length of the name
_EXTREF = struct.Struct("<Q8xH")  # btrfs_inode_extref: folder, (index), length of the name
_LOOKUP = struct.Struct("<QQ4080s")  # btrfs_ioctl_ino_lookup_args: tree, inode, path
_INFO = struct.Struct(
    "<Q288x16s16s16xQQ144x"
)  # btrfs_ioctl_get_subvol_info_args: id, ..., uuid, parent_uuid, ..., ctransid, otransid
_ROOT_INODE = 256
_FOLDER_MODE, _TYPE_MODE = 0o040000, 0o170000
_MAX_U64 = (1 << 64) - 1
_NO_UUID = bytes(16)


class Changes(NamedTuple):
    """`paths`: of changed files and folders, with all folders above them, relative to the subvolume; the subvolume
    itself is `b""`. `new_names`: by the inode of a folder, names that were added to it.
    """

    paths: set[bytes]
    new_names: dict[int, set[bytes]]


class Subvolume(NamedTuple):
    """`tree`: the number of its tree. `uuid`, `parent_uuid`: its id, and that of the subvolume of which it is a
    snapshot. `changed`, `made`: the numbers of the transactions that changed it last, and that made it.
    """

    tree: int
    uuid: bytes
    parent_uuid: bytes
    changed: int
    made: int


def read_subvolume(path: str) -> Subvolume:
    """Raises OSError: ENOTTY if the path is not on btrfs, EINVAL on an old kernel."""
    with open_folder(path) as fd:
        return Subvolume(*_INFO.unpack(call(fd, _IOC_GET_SUBVOL_INFO, bytes(_INFO.size), "GET_SUBVOL_INFO", path)))


def changes(path: str, earlier: str) -> Changes | None:
    """What has changed in the subvolume at `path` since the read-only subvolume at `earlier`, in the same folder.

    None if that cannot be told: one of them is no subvolume, or is missing, or the content of `earlier` is no earlier
    state of `path`, or a path is too long. Neither may change meanwhile.
    """
    try:
        since = read_subvolume(earlier)
        if not _is_earlier_state(since, read_subvolume(path), _all_beside(path)):
            return None
        with open_folder(path) as fd:
            return _since(fd, path, since.made)
    except OSError:
        return None


def changes_after(path: str, transaction: int) -> Changes | None:
    """What was changed in the subvolume at `path` by later transactions. Nobody may change it meanwhile. None if that
    cannot be told: it is no subvolume, or a path is too long.
    """
    try:
        with open_folder(path) as fd:
            return _since(fd, path, transaction)
    except OSError:
        return None


def has_same_extents(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two files of the same size in one file system have the same blocks, or the same content in its metadata.
    False if that is not known. Reads no content. A file: a descriptor of any file of its subvolume, which must be
    sealed, and its inode.
    """
    try:
        return _extents(*one) == _extents(*other)
    except OSError:
        return False


def _extents(fd: int, inode: int) -> list[tuple[int, bytes]]:
    # A file has one item with its content, or items that are this short.
    wanted = Range(
        inode, inode, _EXTENT_DATA, _EXTENT_DATA, _SHORT_SEARCH_BYTES, longest=ITEM_HEADER_BYTES + _EXTENT_BYTES
    )
    found = [
        (offset, data[_GENERATION_BYTES:]) for _, offset, kind, data in search(fd, "", wanted) if kind == _EXTENT_DATA
    ]
    if len(found) > _MOST_EXTENTS:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return found


def _all_beside(path: str) -> dict[bytes, Subvolume]:
    folder, found = os.path.dirname(path), dict[bytes, Subvolume]()
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # no subvolume, or removed meanwhile
            one = read_subvolume(f"{folder}/{name}")
            found[one.uuid] = one
    return found


def _is_earlier_state(earlier: Subvolume, later: Subvolume, known: dict[bytes, Subvolume]) -> bool:
    """Whether `later` was made, by snapshots, from `earlier`, or from what `earlier` is an older snapshot of. No later
    state has what was changed in `earlier` after the snapshot.
    """
    one: Subvolume | None = later
    seen = set[bytes]()
    is_as_made = earlier.changed <= earlier.made
    if earlier.parent_uuid == later.uuid:
        return is_as_made
    while one is not None and one.uuid not in seen:
        seen.add(one.uuid)
        if one.parent_uuid in (_NO_UUID, earlier.uuid):
            return one.parent_uuid == earlier.uuid and earlier.changed <= one.made
        if one.parent_uuid == earlier.parent_uuid and one.made >= earlier.made:
            return is_as_made
        one = known.get(one.parent_uuid)
    return False


def _since(fd: int, path: str, transaction: int) -> Changes:
    found, folders = Changes(set(), {}), dict[int, bytes]()
    inodes: list[tuple[int, int, bool]] = []
    names = defaultdict[int, list[tuple[int, bytes]]](list)  # those beside what has changed
    everything = Range(_ROOT_INODE, _MAX_U64, _INODE_ITEM, _DIR_INDEX)
    for inode, offset, kind, data in search(fd, path, everything, transaction + 1):
        if kind == _INODE_ITEM:
            changed, count, mode = _INODE.unpack_from(data)
            if changed > transaction:
                inodes.append((inode, count, mode & _TYPE_MODE == _FOLDER_MODE))
        elif kind in (_INODE_REF, _INODE_EXTREF):
            names[inode].extend(_names_in(offset, kind, data))
        elif kind == _DIR_INDEX:
            added, length = _DIR_ENTRY.unpack_from(data)
            if added > transaction:
                found.new_names.setdefault(inode, set()).add(data[_DIR_ENTRY.size : _DIR_ENTRY.size + length])
    for inode, count, is_folder in inodes:
        if is_folder:
            _add(found.paths, _path_of_folder(fd, path, inode, folders))
            continue
        known = names.get(inode, [])
        for folder, name in known if len(known) == count else _names_of(fd, path, inode):
            above = _path_of_folder(fd, path, folder, folders)
            _add(found.paths, above + b"/" + name if above else name)
    return found


def _add(paths: set[bytes], path: bytes) -> None:
    while path not in paths:
        paths.add(path)
        path = path.rpartition(b"/")[0]


def _names_of(fd: int, path: str, inode: int) -> Iterator[tuple[int, bytes]]:
    """The names of a file, each with the inode of its folder."""
    wanted = Range(inode, inode, _INODE_REF, _INODE_EXTREF, _SHORT_SEARCH_BYTES)
    for _, offset, kind, data in search(fd, path, wanted):
        if kind in (_INODE_REF, _INODE_EXTREF):
            yield from _names_in(offset, kind, data)


def _names_in(offset: int, kind: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """The names in an item of the type _INODE_REF or _INODE_EXTREF."""
    place = 0
    while place < len(data):
        if kind == _INODE_REF:
            (length,), folder, size = _REF.unpack_from(data, place), offset, _REF.size
        else:
            (folder, length), size = _EXTREF.unpack_from(data, place), _EXTREF.size
        yield folder, data[place + size : place + size + length]
        place += size + length


def _path_of_folder(fd: int, path: str, inode: int, known: dict[int, bytes]) -> bytes:
    if inode == _ROOT_INODE:
        return b""
    if inode not in known:
        answer = call(fd, _IOC_INO_LOOKUP, _LOOKUP.pack(0, inode, b""), "INO_LOOKUP", path)
        known[inode] = _LOOKUP.unpack(answer)[2].partition(b"\0")[0].rstrip(b"/")
    return known[inode]
