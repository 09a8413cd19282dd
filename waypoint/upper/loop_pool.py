"""The file `<home>/pool.img` with a btrfs file system in it, mounted at `<home>/pool`, for homes that are not on btrfs.

The file's disk space is reserved before the file system in it may use it: on a full disk a sparse file would let
`sync` succeed and fail afterwards, which turns the file system read-only. The mount is one of the caller's mount
namespace, and the loop device goes with the last mount: when all processes that need the pool are gone, so are
both.
"""

import contextlib
import errno
import os
import secrets
import threading

from waypoint.linux import btrfs, files, filesystem, loop, mounts
from waypoint.model.errors import Failed, HostLacks, StateConflict
from waypoint.upper.contract import Growth, GrowthOutcome, PoolSizes, refusals

IMAGE = "pool.img"
FOLDER = "pool"
_MAKING = ".making-"
_GRAIN = 1 << 20

# Where small files or many names use up metadata before data, the kernel says "no space" with half the pool free.
_METADATA_SHARE = 8

_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.ENOSYS)
_HAS_NOT = (errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.EPERM, errno.EACCES)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PoolFile:
    """A mounted pool file; the ground of a BtrfsPool. Made by `open_pool_file`."""

    def __init__(self, home: str, sizes: PoolSizes) -> None:
        self._home = home
        self._image = f"{home}/{IMAGE}"
        self.folder = f"{home}/{FOLDER}"
        self._sizes = sizes
        self._growing = threading.Lock()

    def grow_if_needed(self) -> Growth:
        with self._growing, refusals("grow the pool", self._image):
            free = filesystem.free_bytes(self.folder)
            missing = self._missing_bytes(free)
            if missing <= 0:
                return Growth(GrowthOutcome.ENOUGH, free)
            step = _whole(self._sizes.step_bytes)
            spare = filesystem.free_bytes(self._home) - self._sizes.floor_bytes
            added = min(-(-missing // step), spare // step) * step
            if added <= 0:
                return self._refused(free, f"the disk would have less than {_mib(self._sizes.floor_bytes)} left")
            return self._grow(free, added)

    def _missing_bytes(self, free: int) -> int:
        space = btrfs.space_on_device(self.folder)
        for_metadata = self._sizes.headroom_bytes // _METADATA_SHARE
        return max(
            self._sizes.headroom_bytes - free, for_metadata - space.unallocated_bytes - space.metadata_free_bytes
        )

    def _grow(self, free: int, added: int) -> Growth:
        fd = os.open(self._image, os.O_RDWR | os.O_CLOEXEC)
        try:
            before = os.fstat(fd).st_size
            try:
                filesystem.reserve(fd, before + added, self._image)
            except OSError as err:
                os.ftruncate(fd, before)  # the file system in it does not know of more yet
                if err.errno in _NO_ROOM:
                    return self._refused(free, str(err.strerror))
                raise
            _use_whole_file(fd, self.folder)
        finally:
            os.close(fd)
        return Growth(GrowthOutcome.GROWN, filesystem.free_bytes(self.folder), added)

    def _refused(self, free: int, said: str) -> Growth:
        return Growth(
            GrowthOutcome.REFUSED, free, said=f"{_mib(free)} are free in the pool, and it cannot grow: {said}"
        )

    def close(self) -> None:
        with contextlib.suppress(OSError):  # not mounted (any more)
            mounts.umount(self.folder, mounts.MNT_DETACH)


def open_pool_file(home: str, sizes: PoolSizes) -> PoolFile:
    """Mount the home's pool file at `<home>/pool`, making it if there is none. `home`: absolute, without symlinks.

    If a process of an earlier daemon still has the pool's file system, that one is mounted, not a second one on the
    same file. Raises HostLacks if the machine has no btrfs, loop devices, mkfs.btrfs or right to use them; Failed,
    also if the disk is too full for a new one; StateConflict if a new one would hide files. A new file has its name
    only when it is whole: after a crash there is the old one or none.
    """
    file = PoolFile(home, sizes)
    with refusals("open the pool", home):
        os.makedirs(file.folder, mode=0o700, exist_ok=True)
        if os.path.exists(f"{home}/{IMAGE}"):
            _open_image(f"{home}/{IMAGE}", file.folder)
        else:
            _make(home, file.folder, sizes)
    return file


def _make(home: str, folder: str, sizes: PoolSizes) -> None:
    image, size = f"{home}/{IMAGE}", _whole(sizes.initial_bytes)
    # A fresh name each time: an mkfs that outlived its caller opens its file by name, and must not find this one.
    making = f"{image}{_MAKING}{secrets.token_hex(8)}"
    if os.listdir(folder):
        said = "it is not empty, and a pool mounted there would hide what is in it"
        raise StateConflict("make the pool", folder, said, "move its content away")
    for name in os.listdir(home):
        if name.startswith(f"{IMAGE}{_MAKING}"):
            os.unlink(f"{home}/{name}")
    if filesystem.free_bytes(home) - size < sizes.floor_bytes:
        said = f"{_mib(size)} for it would leave less than {_mib(sizes.floor_bytes)} free"
        raise Failed("make the pool", image, said, "free some disk space")
    try:
        _format(making, size)
        _open_image(making, folder)
        os.chmod(folder, 0o700)
        os.rename(making, image)
    except BaseException:
        _undo(making, folder)
        raise
    files.sync_folder(home)


def _undo(making: str, folder: str) -> None:
    with contextlib.suppress(OSError):  # it was not mounted yet
        mounts.umount(folder, mounts.MNT_DETACH)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(making)


def _format(making: str, size: int) -> None:
    fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        filesystem.reserve(fd, size, making)
        btrfs.make_filesystem(making)
        os.fsync(fd)
    except FileNotFoundError as err:
        raise HostLacks("make the pool", making, "no program mkfs.btrfs", "install the package btrfs-progs") from err
    except OSError as err:
        if err.errno in _CANNOT_RESERVE:
            said = "this file system cannot reserve disk space for a file"
            raise HostLacks("make the pool", making, said, "use a home on ext4, XFS or btrfs") from err
        raise
    finally:
        os.close(fd)


def _open_image(image: str, folder: str) -> None:
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        _fill_holes(fd, image)
        with _attach(fd, image) as device:
            _mount(device, folder)
        _use_whole_file(fd, folder)
    finally:
        os.close(fd)


def _fill_holes(fd: int, image: str) -> None:
    """A file that was copied may have come out sparse: reserve its space again before anything is written."""
    facts = os.fstat(fd)
    if facts.st_blocks * 512 < facts.st_size:
        filesystem.reserve(fd, facts.st_size, image)


def _attach(fd: int, image: str) -> loop.LoopDevice:
    try:
        return loop.find_attached(fd) or loop.attach(fd)
    except OSError as err:
        if err.errno in _HAS_NOT:
            said = f"no loop device: {err.strerror}"
            raise HostLacks(
                "open the pool", image, said, "load the kernel module loop, or use a home on btrfs"
            ) from err
        raise


def _mount(device: loop.LoopDevice, folder: str) -> None:
    here = [record for record in mounts.read_mounts() if record.mount_point == folder]
    if here and here[-1].source == device.path:  # an earlier daemon in this mount namespace mounted it
        return
    try:
        # nodiscard: discarding would give the reserved space back to the disk. commit: the seconds until the space of
        # removed trees comes back (twice that), and what a power loss costs at most; ext4's usual value.
        mounts.mount(device.path, folder, "btrfs", mounts.MS_NOATIME, "nodiscard,commit=5")
    except OSError as err:
        if err.errno in _HAS_NOT:
            said = f"cannot mount btrfs: {err.strerror}"
            raise HostLacks("open the pool", folder, said, "load the kernel module btrfs") from err
        raise


def _use_whole_file(fd: int, folder: str) -> None:
    """Make device and file system as long as the file: after growth, or at the next start if growth was cut off."""
    # First of all the length must survive a power loss: btrfs does not mount a device that is shorter than it was.
    os.fsync(fd)
    device = loop.find_attached(fd)
    if device is None:
        raise OSError(errno.ENODEV, "the pool's file was replaced while it was in use", folder)
    with device:
        device.update_capacity()
    btrfs.resize_to_device(folder)


def _whole(size: int) -> int:
    return size // _GRAIN * _GRAIN


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
