"""What has changed between two states of a btrfs subvolume, in a time that depends on the changes only.

btrfs notes in each inode, and in each entry of a folder, the transaction that changed it last. A snapshot has the
number of the transaction that made it. So everything with a higher number has changed since that snapshot, and a search
by transaction skips all parts of the tree that have not (linux/btrfs_tree.h).
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.storage.btrfs_search import Range, call, search
from waypoint.linux.storage.descriptors import open_folder

_IOC_INO_LOOKUP = 0xD0009412
_IOC_GET_SUBVOL_INFO = 0x81F8943C

_SHORT_SEARCH_BYTES = 1 << 12  # one item may have almost a page
_INODE_ITEM, _INODE_REF, _INODE_EXTREF, _DIR_INDEX = 1, 12, 13, 96
_INODE = struct.Struct("<8xQ36xI")  # btrfs_inode_item: ..., transaction, ..., mode
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
    inodes: list[tuple[int, bool]] = []
    everything = Range(_ROOT_INODE, _MAX_U64, _INODE_ITEM, _DIR_INDEX)
    for inode, _, kind, data in search(fd, path, everything, transaction + 1):
        if kind == _INODE_ITEM:
            changed, mode = _INODE.unpack_from(data)
            if changed > transaction:
                inodes.append((inode, mode & _TYPE_MODE == _FOLDER_MODE))
        elif kind == _DIR_INDEX:
            added, length = _DIR_ENTRY.unpack_from(data)
            if added > transaction:
                found.new_names.setdefault(inode, set()).add(data[_DIR_ENTRY.size : _DIR_ENTRY.size + length])
    for inode, is_folder in inodes:
        if is_folder:
            _add(found.paths, _path_of_folder(fd, path, inode, folders))
            continue
        for folder, name in _names_of(fd, path, inode):
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
        place = 0
        while place < len(data) and kind in (_INODE_REF, _INODE_EXTREF):
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
