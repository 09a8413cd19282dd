"""Simple quotas of btrfs (Linux 6.7; btrfs-quota(5)): a limit of the bytes written in one subvolume.

Written data is charged to the subvolume until the last snapshot that keeps it is gone. Unlike older quotas, making or
removing a snapshot recounts nothing, which was slow. All calls raise OSError with the path.
"""

import os
import struct

from waypoint.linux.calls import ioctls
from waypoint.linux.storage.btrfs_search import Range, search
from waypoint.linux.storage.descriptors import open_folder

_IOC_QUOTA_CTL = 0xC0109428
_IOC_QGROUP_LIMIT = 0x8030942B
_ENABLE_SIMPLE = 4
_MAX_REFERENCED = 1
_IOC_INO_LOOKUP = 0xD0009412
_FIRST_FREE = 256  # the inode of a subvolume's own folder
_IOC_GET_FEATURES = 0x80189439
_SIMPLE_QUOTA = 1 << 16  # an incompatible feature (linux/btrfs.h)

NO_LIMIT = (1 << 64) - 1

_TREE_OF_QUOTAS = 8
_INFO = 242  # BTRFS_QGROUP_INFO_KEY; its offset is the id of the subvolume

_CONTROL = struct.Struct("QQ")  # btrfs_ioctl_quota_ctl_args: command, (status)
_FEATURES = struct.Struct("QQQ")  # btrfs_ioctl_feature_flags: compatible, read-only compatible, incompatible
_LIMIT = struct.Struct("QQQ24x")  # btrfs_ioctl_qgroup_limit_args: group (a subvolume's id), flags, most referenced
_INFO_ITEM = struct.Struct("<QQ")  # the beginning of btrfs_qgroup_info_item: transaction, referenced
_LOOKUP = struct.Struct("QQ4080x")  # btrfs_ioctl_ino_lookup_args: id of the subvolume (0: that of the file), inode


def enable(path: str) -> None:
    """Begin to count the bytes written in the file system. Afterwards, kernels without simple quotas cannot mount it
    (EINVAL).
    """
    with open_folder(path) as fd:
        wanted = bytearray(_CONTROL.pack(_ENABLE_SIMPLE, 0))
        ioctls.ioctl(fd, _IOC_QUOTA_CTL, wanted, name="BTRFS_IOC_QUOTA_CTL", path=path)


def limit(path: str, most_bytes: int) -> None:
    """Limit the bytes charged to the subvolume `path`. Raises OSError ENOTCONN if quotas are off. The ioctl is called
    on the folder above, because a subvolume that has reached its limit refuses the call (EDQUOT).
    """
    with open_folder(path) as fd, open_folder(os.path.dirname(path)) as above:
        wanted = bytearray(_LIMIT.pack(_subvolume(fd, path), _MAX_REFERENCED, most_bytes))
        ioctls.ioctl(above, _IOC_QGROUP_LIMIT, wanted, name="BTRFS_IOC_QGROUP_LIMIT", path=path)


def charged_bytes(path: str) -> int:
    """The bytes that were charged to the subvolume `path` at the last commit, since `enable`."""
    with open_folder(path) as fd:
        wanted = Range(0, 0, _INFO, _INFO, tree=_TREE_OF_QUOTAS)
        own = _subvolume(fd, path)
        found = (data for _, offset, kind, data in search(fd, path, wanted) if (offset, kind) == (own, _INFO))
        data = next(found, None)
        return int(_INFO_ITEM.unpack_from(data)[1]) if data is not None else 0


def _subvolume(fd: int, path: str) -> int:
    """The id of the subvolume in which the folder `fd` is."""
    found = bytearray(_LOOKUP.pack(0, _FIRST_FREE))
    ioctls.ioctl(fd, _IOC_INO_LOOKUP, found, name="BTRFS_IOC_INO_LOOKUP", path=path)
    return int(_LOOKUP.unpack(found)[0])


def is_enabled(path: str) -> bool:
    """Whether `enable` was ever called for the file system under `path`."""
    with open_folder(path) as fd:
        found = bytearray(_FEATURES.size)
        ioctls.ioctl(fd, _IOC_GET_FEATURES, found, name="BTRFS_IOC_GET_FEATURES", path=path)
        return bool(_FEATURES.unpack(found)[2] & _SIMPLE_QUOTA)
