"""The pool file: `<home>/pool.img` with a btrfs in it, mounted at `<home>/pool`, for homes that are not on btrfs.

The disk space of the whole file is reserved. In a sparse file on a full disk, `sync` would succeed, a later write would
fail, and btrfs would become read-only. The file is mounted in the caller's mount namespace only, and the kernel
detaches the loop device after the last unmount: when all processes that use the pool have ended, neither is left.
"""

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator

from waypoint.linux.storage import btrfs, files, filesystem, loop, mounts
from waypoint.model.errors import Failed, HostLacks, StateConflict
from waypoint.model.ids import random_hex
from waypoint.upper.contract import Growth, GrowthOutcome, Outlook, PoolSizes, mib, refusals

IMAGE = "pool.img"
FOLDER = "pool"
_MAKING = ".making-"
_SIZE_UNIT_BYTES = 1 << 20  # all sizes of the file are multiples of this

# 1/8 of the headroom must be free for metadata: with many small files, btrfs runs out of metadata space, and reports
# "no space", when half of the pool is free for data.
_METADATA_SHARE = 8

_LEAST_SHARE = 16  # the file never grows by less than a step divided by this: each time costs a commit

# What `make_room` adds: _ROOM_BYTES, room for a chunk of metadata, if the disk has more than _SPARE_BYTES left; else
# _LEAST_ROOM_BYTES, only to end or remove something.
_ROOM_BYTES, _LEAST_ROOM_BYTES, _SPARE_BYTES = 16 << 20, 2 << 20, 64 << 20

_PIECE_BYTES = 256 << 20  # the file shrinks by this much at a time, because it cannot grow meanwhile
_FULL_PERCENT = (25, 50, 85)  # chunks at most this full are moved, the emptiest first: they make room
_RETRY_S = 0.02
_LEAST_BYTES = 256 << 20  # btrfs is never smaller (btrfs_ioctl_resize)
_LEAST_UNALLOCATED_BYTES = 64 << 20  # with less, btrfs was seen to refuse a snapshot

_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.ENOSYS)
_HOST_LACKS = (errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.EPERM, errno.EACCES)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def no_reserve() -> None:
    """The home has reserved no space for itself."""


class _GrowingFile:
    """The part of `PoolFile` that is about growing."""

    def __init__(self, home: str, sizes: PoolSizes, give_room: Callable[[], None] = no_reserve) -> None:
        self._home = home
        self._give_room = give_room
        self._image = f"{home}/{IMAGE}"
        self.folder = f"{home}/{FOLDER}"
        self._sizes = sizes
        self._growing = threading.Lock()

    def grow_if_needed(self, ahead_bytes: int = 0) -> Growth:
        with refusals("grow the pool", self._image), self._turn_to_grow(ahead_bytes):
            free, space, added = self._look(ahead_bytes)
            if added > 0:
                return self._grow(free, space.total_bytes, added)
            if _missing_bytes(self._sizes.headroom_bytes, free, space) <= 0:
                return Growth(GrowthOutcome.ENOUGH, free, space.total_bytes)
            said = f"the disk would have less than {mib(self._sizes.floor_bytes)} left"
            return _refused(free, space.total_bytes, said)

    def outlook(self) -> Outlook:
        sizes, space = self._sizes, btrfs.space_on_device(self.folder)
        on_disk = filesystem.free_bytes(self._home)
        spare = _whole(on_disk - sizes.floor_bytes)
        return Outlook(
            free_bytes=min(btrfs.free_bytes(self.folder), _METADATA_SHARE * _free_for_metadata(space)),
            headroom_bytes=sizes.headroom_bytes,
            growth_bytes=spare if spare >= _whole(sizes.step_bytes) // _LEAST_SHARE else 0,
            floor_bytes=sizes.floor_bytes,
            disk_free_bytes=on_disk,
        )

    @contextlib.contextmanager
    def _turn_to_grow(self, ahead_bytes: int) -> Iterator[None]:
        """During the `with` block nobody else resizes the pool. If the pool has to grow while a piece is being shrunk,
        the shrinking is broken off: it may take seconds to move data away from the end.
        """
        while not self._growing.acquire(timeout=_RETRY_S):
            if self._look(ahead_bytes)[2] > 0:
                btrfs.cancel_shrinking(self.folder)
        try:
            yield
        finally:
            self._growing.release()

    def _look(self, ahead_bytes: int) -> tuple[int, btrfs.SpaceOnDevice, int]:
        """The free bytes of the pool, how its space is allocated, and by how many bytes the file is to grow."""
        free, space = btrfs.free_bytes(self.folder), btrfs.space_on_device(self.folder)
        missing = _missing_bytes(self._sizes.headroom_bytes + ahead_bytes, free, space)
        return free, space, self._addition(missing) if missing > 0 else 0

    def _addition(self, missing: int) -> int:
        """By how many bytes the file is to grow if `missing` are missing: whole steps, or as much as the disk can give,
        if that is worth an enlargement; else 0.
        """
        step = _whole(self._sizes.step_bytes)
        spare = _whole(filesystem.free_bytes(self._home) - self._sizes.floor_bytes)
        added = min(-(-missing // step) * step, spare)
        return added if added >= step // _LEAST_SHARE else 0

    def _grow(self, free: int, size: int, added: int) -> Growth:
        try:
            self._enlarge(added)
        except OSError as err:
            if err.errno in _NO_SPACE:
                return _refused(free, size, str(err.strerror))
            raise
        return Growth(GrowthOutcome.GROWN, btrfs.free_bytes(self.folder), size + added)

    def _enlarge(self, added: int) -> None:
        fd = os.open(self._image, os.O_RDWR | os.O_CLOEXEC)
        try:
            before = os.fstat(fd).st_size
            try:
                filesystem.reserve_space(fd, before + added, self._image)
            except OSError:
                os.ftruncate(fd, before)  # safe: the file system in the file has not been resized yet
                raise
            _use_whole_file(fd, self.folder)
        finally:
            os.close(fd)

    def make_room(self, *, with_reserve: bool) -> None:
        with self._growing:
            if filesystem.free_bytes(self._home) >= _SPARE_BYTES:
                self._enlarge(_ROOM_BYTES)
            elif with_reserve:
                self._give_room()
                self._enlarge(_LEAST_ROOM_BYTES)


class PoolFile(_GrowingFile):
    """A mounted pool file, the `Volume` of a BtrfsPool. `open_pool_file` makes it."""

    may_count = True
    no_quotas = "the kernel has no simple quotas of btrfs (Linux 6.7)"

    def shrink(self, go_on: Callable[[], bool], is_idle: Callable[[], bool]) -> int:
        given, more = 0, _PIECE_BYTES
        while more >= _PIECE_BYTES:  # data that is moved while the pool shrinks leaves gaps, which can be joined again
            self._compact_all(go_on)
            more = self._shrink_all(go_on, is_idle)
            given += more
        return given

    def _compact_all(self, go_on: Callable[[], bool]) -> None:
        """Join the content of chunks that are not full, so that others become empty: to shrink, btrfs moves what lies
        at the end into space that is not allocated. No chunk is moved twice, since the new ones lie above `end`.
        """
        end = btrfs.end_of_chunks(self.folder)
        for full_percent in _FULL_PERCENT:
            while go_on() and self._compact(full_percent, end):
                pass

    def _shrink_all(self, go_on: Callable[[], bool], is_idle: Callable[[], bool]) -> int:
        given = 0
        while go_on():
            with self._growing, refusals("shrink the pool", self._image):
                piece = self._shrink(is_idle=is_idle())
            if not piece:
                break
            given += piece
        return given

    def _compact(self, full_percent: int, end: int) -> bool:
        """Move one chunk of data elsewhere. Returns whether there may be more to move.

        The move may take seconds on a slow disk; if the pool has to grow, `_use_whole_file` breaks the move off.
        """
        with refusals("shrink the pool", self._image):
            unallocated = btrfs.space_on_device(self.folder).unallocated_bytes
            if btrfs.free_bytes(self.folder) - unallocated < _PIECE_BYTES:
                return False
            try:
                return btrfs.compact(self.folder, full_percent, end)
            except (FileNotFoundError, subprocess.CalledProcessError):  # no program `btrfs`; no room to move anything
                return False
            finally:
                btrfs.sync_filesystem(self.folder)  # else a chunk that has become empty stays allocated for a while

    def _shrink(self, *, is_idle: bool) -> int:
        """Shrink by one piece. Returns its size in bytes; 0 if nothing is to be given back."""
        sizes, space = self._sizes, btrfs.space_on_device(self.folder)
        headroom = min(sizes.headroom_bytes, sizes.initial_bytes // 4) if is_idle else sizes.headroom_bytes
        piece = min(
            _PIECE_BYTES,
            btrfs.free_bytes(self.folder) - headroom,
            space.unallocated_bytes - max(headroom // _METADATA_SHARE, _LEAST_UNALLOCATED_BYTES),
            space.total_bytes - max(sizes.initial_bytes, _LEAST_BYTES),
        )
        piece = _whole(piece)
        while piece >= _PIECE_BYTES // _LEAST_SHARE:
            try:
                btrfs.resize(self.folder, space.total_bytes - piece)
            except OSError as err:
                if err.errno == errno.ECANCELED:  # the pool has to grow
                    return 0
                if err.errno != errno.ENOSPC:
                    raise
                piece = _whole(piece // 2)  # there is no place large enough for the data at the end
            else:
                self._cut_file(space.total_bytes - piece)
                return piece
        return 0

    def _cut_file(self, size: int) -> None:
        """Cut the file to `size`. The file system in it was made this short before, durably. After a crash in between
        the next opening enlarges the file system to the file's length again.
        """
        fd = os.open(self._image, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            _tell_device(fd, self.folder)
        finally:
            os.close(fd)

    def disk_bytes(self, of_trees: Callable[[], int]) -> int:
        with refusals("measure the pool", self._image):
            return os.stat(self._image).st_blocks * 512

    def close(self) -> None:
        with contextlib.suppress(OSError):  # not mounted, or unmounted before
            mounts.umount(self.folder, mounts.MNT_DETACH)


def _refused(free: int, size: int, said: str) -> Growth:
    return Growth(GrowthOutcome.REFUSED, free, size, f"{mib(free)} are free in the pool, and it cannot grow: {said}")


def _missing_bytes(wanted: int, free: int, space: btrfs.SpaceOnDevice) -> int:
    """By how many bytes the pool is too small to have room for `wanted` bytes; 0 or less if it has the room.

    `free`: what can be written to the pool as it is.
    """
    return max(wanted - free, wanted // _METADATA_SHARE - _free_for_metadata(space))


def _free_for_metadata(space: btrfs.SpaceOnDevice) -> int:
    return space.unallocated_bytes + space.metadata_free_bytes


def open_pool_file(home: str, sizes: PoolSizes, give_room: Callable[[], None] = no_reserve) -> PoolFile:
    """Mount the home's pool file at `<home>/pool`, creating the file if missing. `home`: absolute, without symlinks.

    If a process of an earlier daemon still uses the pool, its loop device and file system are mounted again. A new file
    gets its name when it is complete, so a crash leaves the complete file or none. `give_room`: frees some MiB of a
    full disk for `make_room`.
    Raises HostLacks if the machine lacks btrfs, loop devices, mkfs.btrfs or the right to use them; Failed, also if the
    disk is too full for a new file; StateConflict if mounting a new file would hide files in `<home>/pool`.
    """
    file = PoolFile(home, sizes, give_room)
    with refusals("open the pool", home):
        os.makedirs(file.folder, mode=0o700, exist_ok=True)
        if os.path.exists(f"{home}/{IMAGE}"):
            _open_image(f"{home}/{IMAGE}", file.folder)
        else:
            _make(home, file.folder, sizes)
    return file


def _make(home: str, folder: str, sizes: PoolSizes) -> None:
    image, size = f"{home}/{IMAGE}", _whole(sizes.initial_bytes)
    # Each try gets a new name, because the mkfs of a killed caller may still run, and opens its file by name.
    making = f"{image}{_MAKING}{random_hex(8)}"
    if os.listdir(folder):
        said = "the folder is not empty, and a pool mounted there would hide its content"
        raise StateConflict("make the pool", folder, said, "move the folder's content away")
    for name in os.listdir(home):
        if name.startswith(f"{IMAGE}{_MAKING}"):
            os.unlink(f"{home}/{name}")
    if filesystem.free_bytes(home) - size < sizes.floor_bytes:
        said = f"a pool of {mib(size)} would leave less than {mib(sizes.floor_bytes)} free on the disk"
        raise Failed("make the pool", image, said, "make room on that file system")
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
        raise HostLacks("make the pool", making, "no program mkfs.btrfs", "install the package btrfs-progs") from err
    except OSError as err:
        if err.errno in _CANNOT_RESERVE:
            said = "this file system cannot reserve disk space for a file"
            raise HostLacks("make the pool", making, said, "put the home on ext4, XFS or btrfs") from err
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
    """Reserve the disk space of a sparse file again: copying a home can make its pool file sparse."""
    facts = os.fstat(fd)
    if facts.st_blocks * 512 < facts.st_size:
        filesystem.reserve_space(fd, facts.st_size, image)


def _attach(fd: int, image: str) -> loop.LoopDevice:
    try:
        return loop.find_attached(fd) or loop.attach(fd)
    except OSError as err:
        if err.errno in _HOST_LACKS:
            said = f"no loop device: {err.strerror}"
            raise HostLacks(
                "open the pool", image, said, "load the kernel module loop, or use a home on btrfs"
            ) from err
        raise


def _mount(device: loop.LoopDevice, folder: str) -> None:
    here = [record for record in mounts.read_mounts() if record.mount_point == folder]
    if here and here[-1].source == device.path:  # mounted before, by an earlier daemon in this mount namespace
        return
    try:
        # nodiscard: discarding would give the reserved space back to the disk. commit: seconds between commits, and so
        # the most that a power loss can cost (ext4's default is 5 too); a removed tree's space is free after two.
        flags = mounts.MS_NOATIME | mounts.MS_NOSUID | mounts.MS_NODEV  # an overlay over it has flags of its own
        mounts.mount(device.path, folder, "btrfs", flags, "nodiscard,commit=5")
    except OSError as err:
        if err.errno in _HOST_LACKS:
            said = f"cannot mount btrfs: {err.strerror}"
            raise HostLacks("open the pool", folder, said, "load the kernel module btrfs") from err
        raise


def _use_whole_file(fd: int, folder: str) -> None:
    """Enlarge the device and the file system to the file's size. On opening, this completes a growth cut by a crash.

    btrfs refuses to resize while it moves chunks (`PoolFile.shrink`), and it goes on moving them after the daemon was
    killed, even after a reboot. So moving is cancelled first.
    """
    # The file's length must be durable first: btrfs refuses to mount a device that is shorter than its file system.
    os.fsync(fd)
    _tell_device(fd, folder)
    try:
        btrfs.resize_to_device(folder)
    except OSError as err:
        if err.errno != errno.EBUSY:
            raise
        btrfs.cancel_balance(folder)
        btrfs.resize_to_device(folder)


def _tell_device(fd: int, folder: str) -> None:
    """Give the device the size of its file."""
    device = loop.find_attached(fd)
    if device is None:
        raise OSError(errno.ENODEV, "the pool's file was replaced while it was in use", folder)
    with device:
        device.update_capacity()


def _whole(size: int) -> int:
    return size // _SIZE_UNIT_BYTES * _SIZE_UNIT_BYTES
