"""btrfs by ioctl (linux/btrfs.h, btrfs-ioctl(5)): subvolumes, their flags, commits, the size of a file system.

The btrfs program costs more than the calls it makes (1-3 ms against a fraction of one), so only mkfs is a program here.
All calls need CAP_SYS_ADMIN and raise OSError with the path; ENOTTY means that the path is not on btrfs.
"""

import errno
import os
import struct
from dataclasses import dataclass

from waypoint.linux import ioctls, programs
from waypoint.linux.descriptors import open_folder

_IOC_RESIZE = 0x50009403
_IOC_SYNC = 0x9408
_IOC_SNAP_DESTROY = 0x5000940F
_IOC_SPACE_INFO = 0xC0109414
_IOC_SNAP_CREATE_V2 = 0x50009417
_IOC_SUBVOL_CREATE_V2 = 0x50009418
_IOC_SUBVOL_GETFLAGS = 0x80089419
_IOC_SUBVOL_SETFLAGS = 0x4008941A
_IOC_DEV_INFO = 0xD000941E

_SUBVOL_RDONLY = 1 << 1
_BLOCK_GROUP_METADATA = 1 << 2
_GLOBAL_RESERVE = 1 << 49  # a part of the metadata that is listed as a group of its own

_VOL_ARGS = struct.Struct("q4088s")  # btrfs_ioctl_vol_args: fd, name
_VOL_ARGS_V2 = struct.Struct("qQQ32x4040s")  # btrfs_ioctl_vol_args_v2: fd, transid, flags, (qgroups), name
_FLAGS = struct.Struct("Q")
_SPACE_ARGS = struct.Struct("QQ")  # btrfs_ioctl_space_args: slots offered, slots there are
_SPACE_SLOT = struct.Struct("QQQ")  # btrfs_ioctl_space_info: flags, total, used
_DEV_INFO = struct.Struct("Q16xQQ4056x")  # btrfs_ioctl_dev_info_args: devid, (uuid), allocated, total, ...

_FIRST_DEVICE = 1
_MAX_NAME_BYTES = 255
_SUBVOLUME_ROOT_INODE = 256


@dataclass(frozen=True, slots=True)
class SpaceOnDevice:
    """How the bytes of a file system's only device are given out.

    `total`: the device, as the file system sees it. `unallocated`: in no chunk yet, so still free for data or metadata.
    `metadata_free`: unused in the chunks that hold metadata, without the kernel's reserve for bad times.
    """

    total_bytes: int
    unallocated_bytes: int
    metadata_free_bytes: int


def _ioctl(fd: int, number: int, arguments: bytes, name: str, path: str) -> bytes:
    buffer = bytearray(arguments)
    if ioctls.ioctl(fd, number, buffer, name=name, path=path) > 0:
        # linux/btrfs.h, enum btrfs_err_code: the file system refuses in its own words, such as "exclusive operation
        # in progress".
        raise OSError(errno.EBUSY, f"{name}: refused by btrfs, another operation is in progress", path)
    return bytes(buffer)


def _split(path: str) -> tuple[str, bytes]:
    parent, name = os.path.split(path)
    encoded = os.fsencode(name)
    if not 0 < len(encoded) <= _MAX_NAME_BYTES:
        raise ValueError(f"a subvolume's name has 1 to {_MAX_NAME_BYTES} bytes: {path!r}")
    return parent, encoded


def create_subvolume(path: str) -> None:
    """Make an empty subvolume, with a mode by the umask. Atomic. Raises FileExistsError if `path` exists."""
    parent, name = _split(path)
    with open_folder(parent) as fd:
        _ioctl(fd, _IOC_SUBVOL_CREATE_V2, _VOL_ARGS_V2.pack(0, 0, 0, name), "BTRFS_IOC_SUBVOL_CREATE_V2", path)


def snapshot_subvolume(source: str, path: str, *, readonly: bool = False) -> None:
    """Make a subvolume at `path` with the content of subvolume `source`.

    First the dirty data of `source` (not that of its neighbours) is written out, which is what takes long; then the
    metadata of the whole file system is committed. What is dirtied in between is not in the snapshot, not even where
    other data in the same file is: only with its writers stopped it is of one moment. Raises FileExistsError.
    """
    parent, name = _split(path)
    flags = _SUBVOL_RDONLY if readonly else 0
    with open_folder(source) as source_fd, open_folder(parent) as fd:
        arguments = _VOL_ARGS_V2.pack(source_fd, 0, flags, name)
        _ioctl(fd, _IOC_SNAP_CREATE_V2, arguments, "BTRFS_IOC_SNAP_CREATE_V2", path)


def destroy_subvolume(path: str) -> None:
    """Delete a subvolume, read-only or not, with all that is in it. The name is gone on return.

    The kernel's cleaner gives the space back after one or two commits (each 30 s, or as mounted); after a crash it goes
    on at the next mount. BTRFS_IOC_START_SYNC, meant to hasten it, was seen to block for a whole commit interval.
    Files that are open stay readable. Raises FileNotFoundError, or ENOTEMPTY while other subvolumes lie inside.
    """
    parent, name = _split(path)
    with open_folder(parent) as fd:
        _ioctl(fd, _IOC_SNAP_DESTROY, _VOL_ARGS.pack(0, name), "BTRFS_IOC_SNAP_DESTROY", path)


def is_subvolume(path: str) -> bool:
    """True if the folder `path`, which lies on btrfs, is a subvolume's root."""
    return os.stat(path).st_ino == _SUBVOLUME_ROOT_INODE


def is_readonly(path: str) -> bool:
    with open_folder(path) as fd:
        flags: int = _FLAGS.unpack(_ioctl(fd, _IOC_SUBVOL_GETFLAGS, bytes(8), "BTRFS_IOC_SUBVOL_GETFLAGS", path))[0]
    return bool(flags & _SUBVOL_RDONLY)


def make_readonly(path: str) -> None:
    """Let nothing in the subvolume be opened for writing any more (EROFS). What is open for writing already goes on."""
    with open_folder(path) as fd:
        _ioctl(fd, _IOC_SUBVOL_SETFLAGS, _FLAGS.pack(_SUBVOL_RDONLY), "BTRFS_IOC_SUBVOL_SETFLAGS", path)


def sync_filesystem(path: str) -> None:
    """Write out all data of the file system under `path` and commit it, then wake the cleaner of deleted subvolumes."""
    with open_folder(path) as fd:
        _ioctl(fd, _IOC_SYNC, bytes(1), "BTRFS_IOC_SYNC", path)


def resize_to_device(path: str) -> None:
    """Let the file system under `path` use all of its (only) device, after the device has grown. Nothing if it does."""
    with open_folder(path) as fd:
        _ioctl(fd, _IOC_RESIZE, _VOL_ARGS.pack(0, b"max"), "BTRFS_IOC_RESIZE", path)


def space_on_device(path: str) -> SpaceOnDevice:
    with open_folder(path) as fd:
        answer = _ioctl(fd, _IOC_DEV_INFO, _DEV_INFO.pack(_FIRST_DEVICE, 0, 0), "BTRFS_IOC_DEV_INFO", path)
        groups = _space_groups(fd, path)
    _, allocated, total = _DEV_INFO.unpack(answer)
    metadata = [(flags, size, used) for flags, size, used in groups if flags & _BLOCK_GROUP_METADATA]
    free = sum(-size if flags & _GLOBAL_RESERVE else size - used for flags, size, used in metadata)
    return SpaceOnDevice(total, total - allocated, max(0, free))


def _space_groups(fd: int, path: str) -> list[tuple[int, int, int]]:
    slots = 16  # data, metadata, system, the global reserve, each at most in a few profiles
    buffer = _SPACE_ARGS.pack(slots, 0) + bytes(slots * _SPACE_SLOT.size)
    answer = _ioctl(fd, _IOC_SPACE_INFO, buffer, "BTRFS_IOC_SPACE_INFO", path)
    _, there_are = _SPACE_ARGS.unpack_from(answer)
    end = _SPACE_ARGS.size + there_are * _SPACE_SLOT.size
    return list(_SPACE_SLOT.iter_unpack(answer[_SPACE_ARGS.size : end]))


def make_filesystem(path: str) -> None:
    """Run mkfs.btrfs on the file at `path`, which keeps the disk space it has (nothing is discarded).

    Metadata is kept once, not twice as is the default for one device: a commit, and with it every snapshot, is a third
    faster, and the file system around the file keeps its own metadata once, too.
    Raises FileNotFoundError without btrfs-progs, CalledProcessError if it refuses (at least about 110 MiB are needed).
    """
    programs.run("mkfs.btrfs", "--quiet", "--nodiscard", "--metadata", "single", "--data", "single", path)
