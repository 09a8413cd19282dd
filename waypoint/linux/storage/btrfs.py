"""btrfs by ioctl (linux/btrfs.h, btrfs-ioctl(5)): subvolumes, their flags, commits, the size of a file system.

Running the `btrfs` program takes 1-3 ms, its system call a fraction of a millisecond. So programs are run only for
`mkfs.btrfs`, a balance and disk usage.
All calls need CAP_SYS_ADMIN and raise OSError with the path; ENOTTY means that the path is not on btrfs.
"""

import ctypes
import errno
import glob
import os
import re
import struct
import subprocess
import time
from dataclasses import dataclass
from typing import NamedTuple

from waypoint.linux.calls import ioctls, programs
from waypoint.linux.storage import filesystem
from waypoint.linux.storage.descriptors import open_folder

_IOC_RESIZE = 0x50009403
_IOC_SYNC = 0x9408
_IOC_SNAP_DESTROY = 0x5000940F
_IOC_SPACE_INFO = 0xC0109414
_IOC_SNAP_CREATE_V2 = 0x50009417
_IOC_SUBVOL_CREATE_V2 = 0x50009418
_IOC_SUBVOL_SETFLAGS = 0x4008941A
_IOC_DEV_INFO = 0xD000941E
_IOC_FS_INFO = 0x8400941F
_IOC_INO_PATHS = 0xC0389423

_IOC_BALANCE_CTL = 0x40049421
_IOC_TREE_SEARCH = 0xD0009411

_SUBVOL_RDONLY = 1 << 1
_BLOCK_GROUP_DATA = 1 << 0
_BLOCK_GROUP_METADATA = 1 << 2
_BALANCE_CANCEL = 2
_GLOBAL_RESERVE = 1 << 49  # a part of the metadata space that the kernel lists as a block group of its own

_VOL_ARGS = struct.Struct("q4088s")  # btrfs_ioctl_vol_args: fd, name
_VOL_ARGS_V2 = struct.Struct("qQQ32x4040s")  # btrfs_ioctl_vol_args_v2: fd, transid, flags, (qgroups), name
_FLAGS = struct.Struct("Q")
_SPACE_ARGS = struct.Struct("QQ")  # btrfs_ioctl_space_args: slots in the buffer, slots filled by the kernel
_SPACE_SLOT = struct.Struct("QQQ")  # btrfs_ioctl_space_info: flags, total, used
_DEV_INFO = struct.Struct("Q16xQQ4056x")  # btrfs_ioctl_dev_info_args: devid, (uuid), allocated, total, ...
_FS_INFO = struct.Struct("16x16s992x")  # btrfs_ioctl_fs_info_args: ..., the file system's id, ...

_PATHS_ARGS = struct.Struct("QQ32xQ")  # btrfs_ioctl_ino_path_args: inode, size and address of the answer
_PATHS_ANSWER = struct.Struct("8xI4x")  # btrfs_data_container: ..., the number of paths; then the place of each
_PATHS_BYTES = 4096  # the kernel's limit; more paths are left out

_SEARCH_KEY = struct.Struct("QQQQQQQIII4x32x")  # btrfs_ioctl_search_key: tree, least and greatest of each part, count
_SEARCH_HEADER = struct.Struct("QQQII")  # btrfs_ioctl_search_header: transid, objectid, offset, type, length
_TREE_OF_ROOTS, _ORPHANS, _ORPHAN_ITEM = 1, (1 << 64) - 5, 48
_TREE_OF_DEVICES, _CHUNK_ITEM = 4, 204
_CHUNK = struct.Struct("QQQQ")  # btrfs_dev_extent: ..., length
_MAX_U32, _MAX_U64 = (1 << 32) - 1, (1 << 64) - 1
_CLEANER_S = 0.02
_DU_TRIES = 5

_FIRST_DEVICE = 1
_MAX_NAME_BYTES = 255
_SUBVOLUME_ROOT_INODE = 256


@dataclass(frozen=True, slots=True)
class SpaceOnDevice:
    """The space of a file system on one device. `total_bytes`: size of the device as the file system knows it.
    `unallocated_bytes`: in no chunk yet, so free for data or metadata. `metadata_free_bytes`: unused in metadata
    chunks, without the kernel's global reserve. `data_bytes`: content of files, each shared block counted once.
    """

    total_bytes: int
    unallocated_bytes: int
    metadata_free_bytes: int
    data_bytes: int


def _ioctl(fd: int, number: int, arguments: bytes, name: str, path: str) -> bytes:
    buffer = bytearray(arguments)
    if ioctls.ioctl(fd, number, buffer, name=name, path=path) > 0:
        # A positive result is a btrfs error of its own (linux/btrfs.h, enum btrfs_err_code), such as "exclusive
        # operation in progress".
        raise OSError(errno.EBUSY, f"{name}: refused by btrfs, another operation is in progress", path)
    return bytes(buffer)


def _split(path: str) -> tuple[str, bytes]:
    parent, name = os.path.split(path)
    encoded = os.fsencode(name)
    if not 0 < len(encoded) <= _MAX_NAME_BYTES:
        raise ValueError(f"a subvolume's name has 1 to {_MAX_NAME_BYTES} bytes: {path!r}")
    return parent, encoded


def create_subvolume(path: str) -> None:
    """Make an empty subvolume with mode 0777 less the umask. Atomic. Raises FileExistsError if `path` exists."""
    parent, name = _split(path)
    with open_folder(parent) as fd:
        _ioctl(fd, _IOC_SUBVOL_CREATE_V2, _VOL_ARGS_V2.pack(0, 0, 0, name), "BTRFS_IOC_SUBVOL_CREATE_V2", path)


def snapshot_subvolume(source: str, path: str, *, readonly: bool = False) -> None:
    """Make a subvolume at `path` with the content of subvolume `source`. Raises FileExistsError if `path` exists.

    The kernel writes out the dirty data of `source` (not of other subvolumes), which takes most of the time, and then
    commits the metadata of the whole file system. The snapshot may lack data that is written in between, even of a file
    whose other data it has. If it must show one moment, stop all writers of `source` first.
    """
    parent, name = _split(path)
    flags = _SUBVOL_RDONLY if readonly else 0
    with open_folder(source) as source_fd, open_folder(parent) as fd:
        arguments = _VOL_ARGS_V2.pack(source_fd, 0, flags, name)
        _ioctl(fd, _IOC_SNAP_CREATE_V2, arguments, "BTRFS_IOC_SNAP_CREATE_V2", path)


def destroy_subvolume(path: str) -> None:
    """Delete a subvolume, read-only or not, with its content; open files stay readable. Raises FileNotFoundError, or
    OSError ENOTEMPTY if it contains other subvolumes.

    The kernel's cleaner thread frees the space after one or two commits, after a crash at the next mount.
    BTRFS_IOC_START_SYNC would not hurry it: that call was seen to block for a whole commit interval.
    """
    parent, name = _split(path)
    with open_folder(parent) as fd:
        _ioctl(fd, _IOC_SNAP_DESTROY, _VOL_ARGS.pack(0, name), "BTRFS_IOC_SNAP_DESTROY", path)


def is_subvolume(path: str) -> bool:
    return os.stat(path).st_ino == _SUBVOLUME_ROOT_INODE


def make_readonly(path: str) -> None:
    """Make opening files of the subvolume for writing fail (EROFS); open descriptors stay writable."""
    with open_folder(path) as fd:
        _ioctl(fd, _IOC_SUBVOL_SETFLAGS, _FLAGS.pack(_SUBVOL_RDONLY), "BTRFS_IOC_SUBVOL_SETFLAGS", path)


def sync_filesystem(path: str) -> None:
    """Write out all data of the file system under `path`, commit, and wake the cleaner of deleted subvolumes."""
    with open_folder(path) as fd:
        _ioctl(fd, _IOC_SYNC, bytes(1), "BTRFS_IOC_SYNC", path)


def wait_until_cleaned(path: str, seconds: float) -> bool:
    """Wait at most `seconds` until the space of all deleted subvolumes is free. Returns whether it is free.

    A deleted subvolume has an orphan item in the tree of roots until its space is free (btrfs-dev-docs, trees.txt).
    Each commit wakes the cleaner.
    """
    deadline = time.monotonic() + seconds
    with open_folder(path) as fd:
        while True:
            is_cleaned = not _has_orphaned_roots(fd, path)
            _ioctl(fd, _IOC_SYNC, bytes(1), "BTRFS_IOC_SYNC", path)
            if is_cleaned or time.monotonic() > deadline:
                return is_cleaned
            time.sleep(_CLEANER_S)


def paths_of_inode(path: str, inode: int) -> list[bytes]:
    """Return the paths of the file with this inode in the subvolume at `path`, relative to it; empty if it has none."""
    answer = bytearray(_PATHS_BYTES)
    buffer = (ctypes.c_char * _PATHS_BYTES).from_buffer(answer)
    arguments = _PATHS_ARGS.pack(inode, _PATHS_BYTES, ctypes.addressof(buffer))
    try:
        with open_folder(path) as fd:
            _ioctl(fd, _IOC_INO_PATHS, arguments, "BTRFS_IOC_INO_PATHS", path)
    except FileNotFoundError:
        return []
    start = _PATHS_ANSWER.size
    (number,) = _PATHS_ANSWER.unpack_from(answer)
    places = struct.unpack_from(f"{number}Q", answer, start)
    return [bytes(answer[start + place : answer.index(0, start + place)]) for place in places]


def _has_orphaned_roots(fd: int, path: str) -> bool:
    return bool(_search(fd, path, _TREE_OF_ROOTS, _ORPHANS, _ORPHAN_ITEM, 0))


def end_of_chunks(path: str) -> int:
    """Where the last chunk on the device ends. A chunk that was allocated in the last milliseconds may be missing."""
    start, end = 0, 0
    with open_folder(path) as fd:
        while chunks := _search(fd, path, _TREE_OF_DEVICES, _FIRST_DEVICE, _CHUNK_ITEM, start):
            offset, chunk = chunks[-1]
            start, end = offset + 1, offset + _CHUNK.unpack_from(chunk)[3]
    return end


def _search(fd: int, path: str, tree: int, objectid: int, kind: int, least: int) -> list[tuple[int, bytes]]:
    """The first items of a tree with this object and kind, from the offset `least`: as many as the kernel's answer has
    room for, each with its offset.
    """
    key = _SEARCH_KEY.pack(tree, objectid, objectid, least, _MAX_U64, 0, _MAX_U64, kind, kind, _MAX_U32)
    answer = _ioctl(fd, _IOC_TREE_SEARCH, key + bytes(4096 - len(key)), "BTRFS_IOC_TREE_SEARCH", path)
    place, found = _SEARCH_KEY.size, []
    for _ in range(_SEARCH_KEY.unpack_from(answer)[9]):  # the number of items that were found
        _, _, offset, _, length = _SEARCH_HEADER.unpack_from(answer, place)
        place += _SEARCH_HEADER.size
        found.append((offset, answer[place : place + length]))
        place += length
    return found


def balance(path: str, full_percent: int) -> None:
    """Move the content of all data chunks that are at most `full_percent` full into others, which frees their space.
    Raises FileNotFoundError without btrfs-progs, CalledProcessError if the space is not enough or it is cancelled.
    """
    programs.run("btrfs", "balance", "start", f"-dusage={full_percent}", path)


def cancel_shrinking(path: str) -> None:
    """Make a running `resize` to a smaller size fail with ECANCELED (since Linux 5.14). Moved data stays moved."""
    try:
        with open_folder(path) as fd:
            _ioctl(fd, _IOC_RESIZE, _VOL_ARGS.pack(0, b"cancel"), "BTRFS_IOC_RESIZE", path)
    except OSError as err:
        # The resize was cancelled; there was none; or the kernel does not know this call.
        if err.errno not in (errno.ECANCELED, errno.ENOTCONN, errno.EINVAL):
            raise


def cancel_balance(path: str) -> None:
    """End a running or paused balance, after it has moved the present extent. Moved data stays moved."""
    try:
        with open_folder(path) as fd:
            ioctls.ioctl(fd, _IOC_BALANCE_CTL, _BALANCE_CANCEL, name="BTRFS_IOC_BALANCE_CTL", path=path)
    except OSError as err:
        if err.errno != errno.ENOTCONN:  # there is none
            raise


def resize(path: str, size: int) -> None:
    """Resize the file system under `path`, which has one device, to `size` bytes. Data beyond that size is moved.
    Durable on return. After ENOSPC (not enough space for that data), EINVAL (below 256 MiB) or ECANCELED the size is
    unchanged.
    """
    with open_folder(path) as fd:
        _ioctl(fd, _IOC_RESIZE, _VOL_ARGS.pack(0, b"%d" % size), "BTRFS_IOC_RESIZE", path)


def limit_chunks(path: str, most_bytes: int) -> None:
    """Make new chunks of data and metadata at most this large (a multiple of 256 MiB), until the next mount. By
    default, a large file system has chunks of 1 GiB. Raises OSError before Linux 6.0, or if /sys is read-only.
    """
    for kind in ("data", "metadata"):
        with open(f"/sys/fs/btrfs/{_read_id(path)}/allocation/{kind}/chunk_size", "w") as file:
            file.write(str(most_bytes))


def space_on_device(path: str) -> SpaceOnDevice:
    with open_folder(path) as fd:
        answer = _ioctl(fd, _IOC_DEV_INFO, _DEV_INFO.pack(_FIRST_DEVICE, 0, 0), "BTRFS_IOC_DEV_INFO", path)
        groups = _space_groups(fd, path)
    _, allocated, total = _DEV_INFO.unpack(answer)
    metadata = [(flags, size, used) for flags, size, used in groups if flags & _BLOCK_GROUP_METADATA]
    free = sum(-size if flags & _GLOBAL_RESERVE else size - used for flags, size, used in metadata)
    data = sum(used for flags, _, used in groups if flags & _BLOCK_GROUP_DATA)
    return SpaceOnDevice(total, total - allocated, max(0, free), data)


def _space_groups(fd: int, path: str) -> list[tuple[int, int, int]]:
    slots = 16  # more than enough: data, metadata, system and the global reserve, each in a few RAID profiles at most
    buffer = _SPACE_ARGS.pack(slots, 0) + bytes(slots * _SPACE_SLOT.size)
    answer = _ioctl(fd, _IOC_SPACE_INFO, buffer, "BTRFS_IOC_SPACE_INFO", path)
    _, there_are = _SPACE_ARGS.unpack_from(answer)
    end = _SPACE_ARGS.size + there_are * _SPACE_SLOT.size
    return list(_SPACE_SLOT.iter_unpack(answer[_SPACE_ARGS.size : end]))


def free_bytes(path: str) -> int:
    """Bytes that can still be written to the file system under `path`; may be below 0. Unlike statvfs(3) this
    subtracts the space that btrfs has promised to data in the page cache, because btrfs refuses a write when all free
    space is promised.
    """
    data = f"/sys/fs/btrfs/{_read_id(path)}/allocation/data"
    promised = _read_number(f"{data}/bytes_may_use") + _read_number(f"{data}/bytes_reserved")
    return filesystem.free_bytes(path) - promised


def error_count(path: str) -> int:
    """How many reads, writes and checksums failed so far on the devices of the file system; 0 before Linux 5.14."""
    count = 0
    for found in glob.glob(f"/sys/fs/btrfs/{_read_id(path)}/devinfo/*/error_stats"):
        with open(found) as file:
            count += sum(int(line.split()[1]) for line in file)
    return count


def _read_id(path: str) -> str:
    with open_folder(path) as fd:
        answer = _ioctl(fd, _IOC_FS_INFO, bytes(_FS_INFO.size), "BTRFS_IOC_FS_INFO", path)
    digits = _FS_INFO.unpack(answer)[0].hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _read_number(path: str) -> int:
    with open(path) as file:
        return int(file.read())


class DiskUsage(NamedTuple):
    """Bytes of the files below a path. `own`: those in no other file. `shared_here`: those shared by several files, at
    least one of them below the path, counting each block once.
    """

    total: int
    own: int
    shared_here: int


def disk_usage(path: str, limit_s: float | None = None) -> DiskUsage:
    """Run `btrfs filesystem du` on a folder: some ms, more with many files and extents. Data in the page cache does not
    count. The program fails if a file is removed meanwhile, so it is run up to _DU_TRIES times. It cannot read paths of
    more than 4095 bytes: then all blocks count as own ones. Raises TimeoutExpired if one run takes longer than
    `limit_s`.
    """
    try:
        words = _run_du(path, _DU_TRIES, limit_s)
    except subprocess.CalledProcessError as error:
        if os.strerror(errno.ENAMETOOLONG).encode() not in error.stderr:
            raise
        used = filesystem.used_bytes(path, limit_s)
        return DiskUsage(used, used, 0)
    found = re.search(rb"^ *([0-9]+) +([0-9]+) +([0-9]+|-) ", words.partition(b"\n")[2])
    if found is None:
        raise OSError(errno.EPROTO, f"btrfs filesystem du prints {words!r}", path)
    total, own, shared = (0 if word == b"-" else int(word) for word in found.groups())
    return DiskUsage(total, own, shared)


def _run_du(path: str, tries: int, limit_s: float | None) -> bytes:
    try:
        return programs.run("btrfs", "filesystem", "du", "--summarize", "--raw", "--", path, limit_s=limit_s)
    except subprocess.CalledProcessError:
        if tries <= 1 or not os.path.exists(path):
            raise
        return _run_du(path, tries - 1, limit_s)


def make_filesystem(path: str) -> None:
    """Run mkfs.btrfs on the file at `path`, which keeps its disk space. Metadata is stored once, not twice as by
    default: a commit takes a third less time, and the file system under the file usually stores its own metadata once,
    too. Raises FileNotFoundError without btrfs-progs, CalledProcessError if mkfs.btrfs fails (it needs about 110 MiB).
    """
    programs.run("mkfs.btrfs", "--quiet", "--nodiscard", "--metadata", "single", "--data", "single", path)
