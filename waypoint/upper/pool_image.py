"""The file `<home>/pool.img`: making it, attaching it to a loop device, mounting the btrfs in it at `<home>/pool`.

The disk space of all chunks of btrfs is reserved (pool_file.py). Without that, `sync` would succeed on a full disk, but
a later write would fail and make btrfs read-only. The file is mounted in the caller's mount namespace only. The kernel
detaches the loop device after the last unmount, so no device is left when all processes that use the pool have ended.
"""

import contextlib
import errno
import logging
import os

from waypoint.linux.storage import btrfs, files, filesystem, loop, mounts
from waypoint.model.errors import Failed, HostLacks, StateConflict, of_machine
from waypoint.model.ids import random_hex
from waypoint.upper import pool_file
from waypoint.upper.contract import PoolSizes, mib
from waypoint.upper.pool_file import whole

IMAGE = "pool.img"
FOLDER = "pool"
_MAKING = ".making-"

_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.ENOSYS)
_HOST_LACKS = (errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.EPERM, errno.EACCES)
_FLAGS = mounts.MS_NOATIME | mounts.MS_NOSUID | mounts.MS_NODEV  # of the pool only; overlays on it have their own flags
_WITHOUT_LOG = "rescue=nologreplay"

log = logging.getLogger(__name__)


class PoolInUse(Failed):
    """The pool's file system has failed, so that it can be neither written nor read until its sessions have ended."""


def make_image(home: str, folder: str, sizes: PoolSizes) -> int:
    """Make and mount the pool's file. Returns its size, all of which has disk space."""
    image, size = f"{home}/{IMAGE}", whole(sizes.initial_bytes)
    # Each try uses a new name: the mkfs of a killed caller may still run, and opens its file by name.
    making = f"{image}{_MAKING}{random_hex(8)}"
    if os.listdir(folder):
        said = "the folder is not empty, and mounting a pool there would hide its content"
        raise StateConflict("make the pool", folder, said, "move the folder's content away")
    for name in os.listdir(home):
        if name.startswith(f"{IMAGE}{_MAKING}"):
            os.unlink(f"{home}/{name}")
    if filesystem.free_bytes(home) - size < sizes.floor_bytes:
        said = f"a pool of {mib(size)} would leave less than {mib(sizes.floor_bytes)} free on the disk"
        raise Failed("make the pool", image, said, "free some space on that file system")
    try:
        _format(making, size)
        reserved = open_image(making, folder)
        os.chmod(folder, 0o700)
        os.rename(making, image)
    except BaseException:
        _undo(making, folder)
        raise
    files.sync_folder(home)
    return reserved


def _undo(making: str, folder: str) -> None:
    with contextlib.suppress(OSError):  # not mounted yet
        mounts.umount(folder, mounts.MNT_DETACH)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(making)


def _format(making: str, size: int) -> None:
    fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        filesystem.reserve_space(fd, size, making)
        btrfs.make_filesystem(making)
        os.fsync(fd)
    except FileNotFoundError as err:
        said = "the program mkfs.btrfs is not installed"
        raise HostLacks("make the pool", making, said, "install the package btrfs-progs") from err
    except OSError as err:
        if err.errno in _CANNOT_RESERVE:
            said = "this file system cannot reserve disk space for a file"
            raise HostLacks("make the pool", making, said, "put the home on ext4, XFS or btrfs") from err
        raise
    finally:
        os.close(fd)


def open_image(image: str, folder: str) -> int:
    """Mount the pool's file. Returns the size of its reserved part (pool_file.py). Raises PoolInUse, OSError."""
    fd = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        with contextlib.ExitStack() as opened:
            used = loop.find_attached(fd)
            device = opened.enter_context(used or _attach(fd, image))
            if used is None and _is_sparse(fd):
                _reserve_chunks(fd, image, device, folder)
            try:
                _mount(device, folder)
            except OSError as err:
                if used is None:
                    raise
                said = f"its file system has failed ({err.strerror}), and sessions still use it"
                raise PoolInUse("open the pool", image, said, code=of_machine(errno.EIO)) from err
            if filesystem.is_readonly(folder):
                return os.fstat(fd).st_size
            try:
                return _complete(fd, image, folder)
            except OSError as err:
                if not filesystem.is_readonly(folder):
                    raise
                mounts.umount(folder, mounts.MNT_DETACH)
                _mount_to_read(device, folder, err)
                return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _is_sparse(fd: int) -> bool:
    facts = os.fstat(fd)
    return facts.st_blocks * 512 < facts.st_size


def _reserve_chunks(fd: int, image: str, device: loop.LoopDevice, folder: str) -> None:
    """Reserve the disk space of all chunks before anything is written: copying a home can make its pool file sparse.
    The file system must not be mounted anywhere. Does nothing if it cannot be mounted: the next mount fails too.
    """
    try:
        mounts.mount(device.path, folder, "btrfs", _FLAGS | mounts.MS_RDONLY, _WITHOUT_LOG)
    except OSError:
        return
    try:
        least = pool_file.least_bytes(folder)
    finally:
        mounts.umount(folder)
    filesystem.reserve_space(fd, least, image)


def _complete(fd: int, image: str, folder: str) -> int:
    """Reserve the disk space of all chunks, and make the file system at least as large as the reserved part of the
    file, if a crash has interrupted that. Returns the size of the reserved part.
    """
    reserved = pool_file.least_bytes(folder) if _is_sparse(fd) else os.fstat(fd).st_size
    filesystem.reserve_space(fd, reserved, image)
    pool_file.extend(fd, folder, max(reserved, btrfs.space_on_device(folder).total_bytes))
    return reserved


def _attach(fd: int, image: str) -> loop.LoopDevice:
    try:
        return loop.attach(fd)
    except OSError as err:
        if err.errno in _HOST_LACKS:
            said = f"no loop device is available: {err.strerror}"
            raise HostLacks(
                "open the pool", image, said, "load the kernel module loop, or use a home on btrfs"
            ) from err
        raise


def _mount(device: loop.LoopDevice, folder: str) -> None:
    here = [record for record in mounts.read_mounts() if record.mount_point == folder]
    if here and here[-1].source == device.path:  # mounted by an earlier daemon in this mount namespace
        return
    # nodiscard: discarding would give the reserved space back to the disk. commit: the seconds between commits; a power
    # loss loses at most the writes of this time (as with ext4's default), and the space of a removed tree is free after
    # two commits. skip_balance: a balance that a crash interrupted must not continue if btrfs has begun to count what
    # trees write (loop_pool.py).
    try:
        mounts.mount(device.path, folder, "btrfs", _FLAGS, "nodiscard,commit=5,skip_balance")
    except OSError as err:
        if err.errno in _HOST_LACKS:
            said = f"cannot mount btrfs: {err.strerror}"
            raise HostLacks("open the pool", folder, said, "load the kernel module btrfs") from err
        _mount_to_read(device, folder, err)


def _mount_to_read(device: loop.LoopDevice, folder: str, error: OSError) -> None:
    """Mount the pool read-only, so that its trees can be copied. Raises `error` if that fails, too.

    After an error btrfs is read-only until it is unmounted everywhere, sometimes for good. With `nologreplay` it can be
    mounted, but without the writes after the last commit.
    """
    try:
        mounts.mount(device.path, folder, "btrfs", _FLAGS | mounts.MS_RDONLY, _WITHOUT_LOG)
    except OSError:
        raise error from None
    log.error("the pool can only be read: %s (see the kernel's log)", error.strerror)
