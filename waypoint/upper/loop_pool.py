"""The pool file: `<home>/pool.img` with a btrfs in it, mounted at `<home>/pool`, for homes that are not on btrfs.

It grows ahead of need and gives back what is free (pool_image.py says how it is made and mounted). Once btrfs counts
what each tree writes, nothing is moved in it any more, and so it gets no smaller: moving chunks then was seen to leave
a file system that is read-only for good (Linux 6.18: `__btrfs_free_extent` finds no group for a tree that is gone, and
aborts the transaction).
"""

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator

from waypoint.linux.snapshots import btrfs, quota
from waypoint.linux.storage import filesystem, mounts
from waypoint.upper.contract import Growth, GrowthOutcome, Outlook, PoolSizes, mib, refusals
from waypoint.upper.pool_image import FOLDER, IMAGE, make_image, open_image, tell_device, use_whole_file, whole

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

_COUNTED = "a session with --disk has been in it, so its free space stays in it, for the sessions to come"
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
            if filesystem.is_readonly(self.folder):
                return Growth(GrowthOutcome.REFUSED, 0, said="its file system has become read-only")
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
        spare = whole(on_disk - sizes.floor_bytes)
        return Outlook(
            free_bytes=min(btrfs.free_bytes(self.folder), _METADATA_SHARE * _free_for_metadata(space)),
            headroom_bytes=sizes.headroom_bytes,
            growth_bytes=spare if spare >= whole(sizes.step_bytes) // _LEAST_SHARE else 0,
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
        step = whole(self._sizes.step_bytes)
        spare = whole(filesystem.free_bytes(self._home) - self._sizes.floor_bytes)
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
            use_whole_file(fd, self.folder)
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

    no_quotas = "the kernel has no simple quotas of btrfs (Linux 6.7)"

    def __init__(self, home: str, sizes: PoolSizes, give_room: Callable[[], None] = no_reserve) -> None:
        super().__init__(home, sizes, give_room)
        self._moving = threading.Lock()
        self._counts = quota.is_enabled(self.folder)

    def count(self) -> bool:
        self._counts = True
        with self._at_rest():
            try:
                quota.enable(self.folder)
            except OSError:
                self._counts = False
                raise
        return True

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        """During the `with` block nothing that lies in the pool is moved. What is being moved meanwhile is broken off:
        it may take seconds.
        """
        with contextlib.ExitStack() as held:
            for lock, cancel in ((self._growing, btrfs.cancel_shrinking), (self._moving, btrfs.cancel_balance)):
                while not lock.acquire(timeout=_RETRY_S):
                    cancel(self.folder)
                held.callback(lock.release)
            yield

    def why_stays(self) -> str:
        return _COUNTED if self._counts else ""

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
            while go_on():
                with self._moving:
                    if self._counts or not self._compact(full_percent, end):
                        break

    def _shrink_all(self, go_on: Callable[[], bool], is_idle: Callable[[], bool]) -> int:
        given = 0
        while go_on():
            with self._growing, refusals("shrink the pool", self._image):
                piece = 0 if self._counts else self._shrink(is_idle=is_idle())
            if not piece:
                break
            given += piece
        return given

    def _compact(self, full_percent: int, end: int) -> bool:
        """Move one chunk of data elsewhere. Returns whether there may be more to move.

        The move may take seconds on a slow disk; if the pool has to grow, `use_whole_file` breaks the move off.
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
        piece = whole(piece)
        while piece >= _PIECE_BYTES // _LEAST_SHARE:
            try:
                btrfs.resize(self.folder, space.total_bytes - piece)
            except OSError as err:
                if err.errno == errno.ECANCELED:  # the pool has to grow
                    return 0
                if err.errno != errno.ENOSPC:
                    raise
                piece = whole(piece // 2)  # there is no place large enough for the data at the end
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
            tell_device(fd, self.folder)
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
    folder = f"{home}/{FOLDER}"
    with refusals("open the pool", home):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.path.exists(f"{home}/{IMAGE}"):
            open_image(f"{home}/{IMAGE}", folder)
        else:
            make_image(home, folder, sizes)
        return PoolFile(home, sizes, give_room)
