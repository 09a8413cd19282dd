"""The pool file: `<home>/pool.img` with a btrfs in it, mounted at `<home>/pool`, for homes that are not on btrfs.

The file grows before the space is needed, and is compacted (made smaller) while no session lives. pool_image.py makes
and mounts it. After btrfs has begun to count what each tree writes (for `--disk`), the pool is never compacted again:
moving chunks has then made the file system read-only for good (Linux 6.18: `__btrfs_free_extent` finds no group for a
removed tree and aborts the transaction).
"""

import contextlib
import dataclasses
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator

from waypoint.linux.storage import btrfs, filesystem, mounts, quota
from waypoint.upper.btrfs_pool import BtrfsPool
from waypoint.upper.contract import Growth, GrowthOutcome, Outlook, PoolSizes, mib, refusals
from waypoint.upper.pool_image import FOLDER, IMAGE, make_image, open_image, tell_device, use_whole_file, whole

# 1/8 of the headroom must be free for metadata: with many small files, btrfs runs out of metadata space, and reports
# "no space", when half of the pool is free for data.
_METADATA_SHARE = 8

_LEAST_SHARE = 16  # the file never grows by less than a step divided by this, because each growth costs a commit

# `make_room` enlarges the file by _ROOM_BYTES, enough for a chunk of metadata, if more than _SPARE_BYTES are free on
# the disk; otherwise by _LEAST_ROOM_BYTES, and only for ending or removing something.
_ROOM_BYTES, _LEAST_ROOM_BYTES, _SPARE_BYTES = 16 << 20, 2 << 20, 64 << 20

_PIECE_BYTES = 256 << 20  # the file shrinks by this much at a time, so a crash loses the work for at most one piece
_LEAST_PIECE_BYTES = 16 << 20  # the file does not shrink by less, because moving data is slow
_FULL_PERCENT = (25, 50, 85)  # chunks at most this full are moved, the emptiest first, since they free most
_RETRY_S = 0.02
_LEAST_BYTES = 256 << 20  # btrfs is never smaller (btrfs_ioctl_resize)
_LEAST_UNALLOCATED_BYTES = 64 << 20  # with less, btrfs was seen to refuse a snapshot

_COUNTED = "a session with --disk has used the pool, so its free space is kept in it for later sessions"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def no_reserve() -> None:
    """Do nothing: the `give_room` of a home without a reserve."""


class LoopPool(BtrfsPool):
    """A pool on a btrfs in a file. `open_pool_file` makes it.

    One lock is held while the file is resized or its content is moved. A compaction holds it for seconds or minutes,
    and is interrupted when another thread needs the lock (`_resizing`).
    """

    no_quotas = "the kernel has no simple quotas of btrfs (Linux 6.7)"

    def __init__(self, home: str, sizes: PoolSizes, give_room: Callable[[], None] = no_reserve) -> None:
        super().__init__(f"{home}/{FOLDER}")
        self._home = home
        self._give_room = give_room
        self._image = f"{home}/{IMAGE}"
        self._sizes = sizes
        self._lock = threading.Lock()
        self._is_compacting = False
        self._is_broken_off = False
        self._is_closed = False
        self._counts = quota.is_enabled(self.folder)

    @contextlib.contextmanager
    def _resizing(self) -> Iterator[None]:
        """Hold the lock during the `with` block. Interrupts a running compaction; moved data stays moved."""
        while not self._lock.acquire(timeout=_RETRY_S):
            if self._is_compacting:
                self._is_broken_off = True
                btrfs.cancel_balance(self.folder)
                btrfs.cancel_shrinking(self.folder)
        try:
            yield
        finally:
            self._lock.release()

    def grow_if_needed(self, ahead_bytes: int = 0) -> Growth:
        with refusals("grow the pool", self._image):
            if filesystem.is_readonly(self.folder):
                return Growth(GrowthOutcome.REFUSED, 0, said="its file system has become read-only")
            free, space, added = self._look(ahead_bytes)
            if added > 0:
                with self._resizing():
                    free, space, added = self._look(ahead_bytes)  # again: another thread may have enlarged the pool
                    if added > 0:
                        return self._grow(free, space.total_bytes, added)
            if _missing_bytes(self._sizes.headroom_bytes, free, space) <= 0:
                return Growth(GrowthOutcome.ENOUGH, free, space.total_bytes)
            said = f"the disk would have less than {mib(self._sizes.floor_bytes)} left"
            return _refused(free, space.total_bytes, said)

    def outlook(self) -> Outlook:
        with refusals("look at the pool", self.folder):
            sizes, space = self._sizes, btrfs.space_on_device(self.folder)
            on_disk = filesystem.free_bytes(self._home)
            spare = whole(on_disk - sizes.floor_bytes)
            return dataclasses.replace(
                super().outlook(),
                free_bytes=min(btrfs.free_bytes(self.folder), _METADATA_SHARE * _free_for_metadata(space)),
                headroom_bytes=sizes.headroom_bytes,
                growth_bytes=spare if spare >= whole(sizes.step_bytes) // _LEAST_SHARE else 0,
                floor_bytes=sizes.floor_bytes,
                disk_free_bytes=on_disk,
            )

    def _look(self, ahead_bytes: int) -> tuple[int, btrfs.SpaceOnDevice, int]:
        """The free bytes of the pool, how its space is allocated, and by how many bytes the file should grow."""
        free, space = btrfs.free_bytes(self.folder), btrfs.space_on_device(self.folder)
        missing = _missing_bytes(self._sizes.headroom_bytes + ahead_bytes, free, space)
        return free, space, self._addition(missing) if missing > 0 else 0

    def _addition(self, missing: int) -> int:
        """By how many bytes to grow if `missing` bytes are needed: whole steps or, on a fuller disk, all that the disk
        can give; 0 if that is too little.
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
        with self._resizing():
            if filesystem.free_bytes(self._home) >= _SPARE_BYTES:
                self._enlarge(_ROOM_BYTES)
            elif with_reserve:
                self._give_room()
                self._enlarge(_LEAST_ROOM_BYTES)

    def count(self) -> bool:
        with self._resizing():
            quota.enable(self.folder)
            self._counts = True
        return True

    def why_stays(self) -> str:
        return _COUNTED if self._counts else ""

    def spare_bytes(self) -> int:
        with refusals("look at the pool", self._image):
            spare = 0 if self._counts else self._spare()
        return spare if spare >= _LEAST_PIECE_BYTES else 0

    def _spare(self) -> int:
        return min(btrfs.free_bytes(self.folder) - self._sizes.headroom_bytes, self._excess())

    def _excess(self) -> int:
        """By how many bytes the pool is larger than a new one; below 0 if it is smaller."""
        return btrfs.space_on_device(self.folder).total_bytes - max(self._sizes.initial_bytes, _LEAST_BYTES)

    def compact(self, is_idle: Callable[[], bool]) -> int:
        with self._lock, refusals("compact the pool", self._image):
            if self._is_closed or filesystem.is_readonly(self.folder):
                return 0
            self._is_compacting, self._is_broken_off = True, False
            try:
                # Checked only after `_is_compacting` is set: a session that starts later makes a tree, which interrupts
                # this compaction.
                if not is_idle():
                    return 0
                self._settle()
                return self._compact()
            finally:
                self._is_compacting = False

    def _settle(self) -> None:
        """Wait until the kernel has freed the space of removed trees, 10 s at most."""
        for _ in range(100):
            if self._is_broken_off or self._excess() < _LEAST_PIECE_BYTES or btrfs.wait_until_cleaned(self.folder, 0.1):
                return

    def _compact(self) -> int:
        given, more = 0, _PIECE_BYTES
        while more >= _PIECE_BYTES and self.spare_bytes():
            for full_percent in _FULL_PERCENT:
                self._join_chunks(full_percent)
            more = 0
            while piece := self._shrink():  # leaves partly filled chunks, which can be joined again
                more += piece
            given += more
        return given

    def _join_chunks(self, full_percent: int) -> None:
        """Move the content of chunks that are at most `full_percent` full into others. This makes unallocated space,
        which shrinking needs.
        """
        in_gaps = btrfs.free_bytes(self.folder) - btrfs.space_on_device(self.folder).unallocated_bytes
        if in_gaps >= _PIECE_BYTES and not self._is_broken_off:
            with contextlib.suppress(FileNotFoundError, subprocess.CalledProcessError):  # no program `btrfs`; no room
                btrfs.balance(self.folder, full_percent)
            btrfs.sync_filesystem(self.folder)  # otherwise empty chunks stay allocated for a while

    def _shrink(self) -> int:
        """Shrink the file system and the file by one piece. Returns the piece's size; 0 if nothing can be given
        back.
        """
        space = btrfs.space_on_device(self.folder)
        headroom = max(self._sizes.headroom_bytes // _METADATA_SHARE, _LEAST_UNALLOCATED_BYTES)
        piece = whole(min(_PIECE_BYTES, self._spare(), space.unallocated_bytes - headroom))
        while piece >= _LEAST_PIECE_BYTES and not self._is_broken_off:
            try:
                btrfs.resize(self.folder, space.total_bytes - piece)
            except OSError as err:
                if err.errno == errno.ECANCELED:
                    return 0
                if err.errno != errno.ENOSPC:
                    raise
                piece = whole(piece // 2)  # no free space is large enough for the data at the end: try a smaller piece
            else:
                self._cut_file(space.total_bytes - piece)
                return piece
        return 0

    def _cut_file(self, size: int) -> None:
        """Shorten the file to `size`; the file system in it was made smaller before. After a crash in between, the next
        opening enlarges the file system again.
        """
        fd = os.open(self._image, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            tell_device(fd, self.folder)
        finally:
            os.close(fd)

    def stop_compacting(self) -> None:
        if self._is_compacting:
            with self._resizing():
                pass

    def unique_bytes(self) -> int:
        # The file system contains nothing but trees. A walk over the files of a large pool takes seconds.
        with refusals("measure the pool", self._image):
            return btrfs.space_on_device(self.folder).data_bytes

    def disk_bytes(self) -> int:
        with refusals("measure the pool", self._image):
            return os.stat(self._image).st_blocks * 512

    def close(self) -> None:
        # No compaction may begin afterwards: without the mount, it would move the data of the disk's own file system.
        with self._resizing(), contextlib.suppress(OSError):  # not mounted, or unmounted before
            self._is_closed = True
            mounts.umount(self.folder, mounts.MNT_DETACH)


def _refused(free: int, size: int, said: str) -> Growth:
    return Growth(GrowthOutcome.REFUSED, free, size, f"{mib(free)} are free in the pool, and it cannot grow: {said}")


def _missing_bytes(wanted: int, free: int, space: btrfs.SpaceOnDevice) -> int:
    """How many bytes the pool lacks for `wanted` free bytes; 0 or less if it has them. `free`: its free bytes now."""
    return max(wanted - free, wanted // _METADATA_SHARE - _free_for_metadata(space))


def _free_for_metadata(space: btrfs.SpaceOnDevice) -> int:
    return space.unallocated_bytes + space.metadata_free_bytes


def open_pool_file(home: str, sizes: PoolSizes, give_room: Callable[[], None] = no_reserve) -> LoopPool:
    """Mount the home's pool file at `<home>/pool`, creating the file if missing. `home`: absolute, without symlinks.

    If a session of an earlier daemon still uses the pool, the same loop device and file system are mounted again. A new
    file gets its name when it is complete. `give_room`: frees some MiB of a full disk for `make_room`.
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
        return LoopPool(home, sizes, give_room)
