"""The pool file: `<home>/pool.img` with a btrfs in it, mounted at `<home>/pool`, for homes that are not on btrfs.

Its file system is as large as the disk allows, and the part of the file that has disk space grows before the space is
needed (pool_file.py). The file is compacted (made smaller) while no session lives. pool_image.py makes and mounts it.
After btrfs has begun to count what each tree writes (for `--disk`), a compaction moves no data, and only cuts off the
free space behind the last chunk: moving chunks has then made the file system read-only for good (Linux 6.18:
`__btrfs_free_extent` finds no group for a removed tree and aborts the transaction).
"""

import contextlib
import dataclasses
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from waypoint.linux.storage import btrfs, filesystem, mounts, quota
from waypoint.upper.btrfs_pool import BtrfsPool
from waypoint.upper.contract import Growth, GrowthOutcome, Outlook, PoolSizes, mib, refusals
from waypoint.upper.pool_file import LEAST_BYTES, PoolFile, end_of_chunks, whole
from waypoint.upper.pool_image import FOLDER, IMAGE, make_image, open_image

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
_LEAST_UNALLOCATED_BYTES = 64 << 20  # with less, btrfs was seen to refuse a snapshot

_COUNTED = "a session has had a limit of disk space, so free space between its files is kept for later sessions"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Space(NamedTuple):
    """The reserved part of the pool's file, and the size of the file system in it. `free_bytes`: what can be written to
    the reserved part. `for_metadata_bytes`: what metadata can use of it.
    """

    free_bytes: int
    for_metadata_bytes: int
    reserved_bytes: int
    end_bytes: int
    total_bytes: int

    def missing_bytes(self, wanted: int) -> int:
        """How many bytes the reserved part lacks for `wanted` free bytes; 0 or less if it has them."""
        return max(wanted - self.free_bytes, wanted // _METADATA_SHARE - self.for_metadata_bytes)


def no_reserve() -> None:
    """Do nothing: the `give_room` of a home without a reserve."""


class LoopPool(BtrfsPool):
    """A pool on a btrfs in a file. `open_pool_file` makes it.

    One lock is held while the file is resized or its content is moved. A compaction holds it for seconds or minutes,
    and is interrupted when another thread needs the lock (`_resizing`).
    """

    no_quotas = "the kernel has no simple quotas of btrfs (Linux 6.7)"

    def __init__(
        self, home: str, sizes: PoolSizes, reserved_bytes: int, give_room: Callable[[], None] = no_reserve
    ) -> None:
        super().__init__(f"{home}/{FOLDER}")
        self._home = home
        self._give_room = give_room
        self._image = f"{home}/{IMAGE}"
        self._file = PoolFile(self._image, self.folder, reserved_bytes)
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
            space = self._measure()
            if self._addition(space, ahead_bytes) > 0 or self._is_promise_off(space):
                with self._resizing():
                    space = self._measure()  # again: another thread may have enlarged the pool
                    growth = self._grow(space, self._addition(space, ahead_bytes))
                    if self._is_promise_off(self._measure()):
                        self._promise()
                    if growth is not None:
                        return growth
                    space = self._measure()
            if space.missing_bytes(self._sizes.headroom_bytes) <= 0:
                return Growth(GrowthOutcome.ENOUGH, space.free_bytes, space.reserved_bytes)
            return _refused(space, f"the disk would have less than {mib(self._sizes.floor_bytes)} left")

    def free_bytes(self) -> int:
        with refusals("look at the pool", self.folder):
            return self._measure().free_bytes

    def outlook(self) -> Outlook:
        with refusals("look at the pool", self.folder):
            sizes, space = self._sizes, self._measure()
            spare = self._spare_of_disk()
            return dataclasses.replace(
                super().outlook(),
                free_bytes=min(space.free_bytes, _METADATA_SHARE * space.for_metadata_bytes),
                headroom_bytes=sizes.headroom_bytes,
                growth_bytes=spare if spare >= whole(sizes.step_bytes) // _LEAST_SHARE else 0,
                floor_bytes=sizes.floor_bytes,
                disk_free_bytes=filesystem.free_bytes(self._home),
            )

    def _measure(self) -> _Space:
        device, free, reserved = btrfs.space_on_device(self.folder), btrfs.free_bytes(self.folder), self.reserved_bytes
        end, unallocated = end_of_chunks(self.folder), device.unallocated_bytes
        if device.total_bytes > reserved:  # gaps between chunks do not count: a chunk that fits in none is promised
            unallocated = reserved - end
        free += unallocated - device.unallocated_bytes
        return _Space(free, unallocated + device.metadata_free_bytes, reserved, end, device.total_bytes)

    @property
    def reserved_bytes(self) -> int:
        """The size of the part of the file that has disk space; the rest is promised."""
        return self._file.reserved_bytes

    def _spare_of_disk(self) -> int:
        """By how many bytes the reserved part can grow; below 0 if the disk has less than the floor."""
        return whole(filesystem.free_bytes(self._home) - self._sizes.floor_bytes)

    def _promise_end(self) -> int:
        """How large the reserved part could become."""
        return self.reserved_bytes + max(0, min(self._spare_of_disk(), whole(filesystem.free_bytes(self._home))))

    def _addition(self, space: _Space, ahead_bytes: int) -> int:
        """By how many bytes the reserved part should grow: whole steps or, on a fuller disk, all that the disk can
        give; 0 if that is too little. Chunks without disk space get it in any case.
        """
        missing, step = space.missing_bytes(self._sizes.headroom_bytes + ahead_bytes), whole(self._sizes.step_bytes)
        added = min(-(-missing // step) * step, self._spare_of_disk())
        return max(added if added >= step // _LEAST_SHARE else 0, space.end_bytes - space.reserved_bytes)

    def _grow(self, space: _Space, added: int) -> Growth | None:
        if added <= 0:
            return None
        try:
            self._file.reserve(space.reserved_bytes + added)
        except OSError as err:
            if err.errno in _NO_SPACE:
                return _refused(space, str(err.strerror))
            raise
        size = space.reserved_bytes + added
        if space.total_bytes < size:
            self._file.promise(size)
        return Growth(GrowthOutcome.GROWN, self._measure().free_bytes, size)

    def _is_promise_off(self, space: _Space) -> bool:
        """Whether the file system should have another size. Each change is a commit, so small differences stay."""
        if self._is_compacting:
            return False
        promised = self._promise_end()
        wanted = max(promised, space.end_bytes)
        if promised == space.reserved_bytes or space.total_bytes < space.reserved_bytes:
            return space.total_bytes != wanted
        return abs(space.total_bytes - wanted) > self._sizes.step_bytes // 2

    def _promise(self) -> None:
        try:
            self._file.promise(self._promise_end())
        except OSError as err:
            if err.errno not in _NO_SPACE:
                raise

    def make_room(self, *, with_reserve: bool) -> None:
        with self._resizing():
            if filesystem.free_bytes(self._home) >= _SPARE_BYTES:
                self._enlarge(_ROOM_BYTES)
            elif with_reserve:
                self._give_room()
                self._enlarge(_LEAST_ROOM_BYTES)

    def _enlarge(self, added: int) -> None:
        """Enlarge the reserved part, and the file system unless more is promised."""
        space = self._measure()
        size = max(space.reserved_bytes, space.end_bytes) + added
        self._file.reserve(size)
        if space.total_bytes < size:
            self._file.promise(size)

    def count(self) -> bool:
        with self._resizing():
            quota.enable(self.folder)
            self._counts = True
        return True

    def why_stays(self) -> str:
        return _COUNTED if self._counts else ""

    def spare_bytes(self) -> int:
        with refusals("look at the pool", self._image):
            spare = self._spare_behind_chunks() if self._counts else self._spare()
        return spare if spare >= _LEAST_PIECE_BYTES else 0

    def _spare(self) -> int:
        return min(self._measure().free_bytes - self._sizes.headroom_bytes, self._excess())

    def _excess(self) -> int:
        """By how many bytes the pool is larger than a new one; below 0 if it is smaller."""
        return self.reserved_bytes - max(self._sizes.initial_bytes, LEAST_BYTES)

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
                if not self.spare_bytes():
                    return 0
                if not self._counts:  # moving data needs some unallocated space
                    self._file.reserve(min(end_of_chunks(self.folder) + _PIECE_BYTES, self._promise_end()))
                self._file.withdraw()  # the next `grow_if_needed` promises again
                return self._cut_off(self.spare_bytes()) if self._counts else self._compact()
            finally:
                self._is_compacting = False

    def _spare_behind_chunks(self) -> int:
        """How much can be cut off without moving data."""
        return whole(min(self._spare(), self.reserved_bytes - end_of_chunks(self.folder) - self._least_unallocated()))

    def _least_unallocated(self) -> int:
        return max(self._sizes.headroom_bytes // _METADATA_SHARE, _LEAST_UNALLOCATED_BYTES)

    def _cut_off(self, spare: int) -> int:
        self._file.cut(self.reserved_bytes - spare)
        return spare

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
        piece = whole(min(_PIECE_BYTES, self._spare(), space.unallocated_bytes - self._least_unallocated()))
        while piece >= _LEAST_PIECE_BYTES and not self._is_broken_off:
            try:
                self._file.cut(space.total_bytes - piece)
            except OSError as err:
                if err.errno == errno.ECANCELED:
                    return 0
                if err.errno != errno.ENOSPC:
                    raise
                piece = whole(piece // 2)  # no free space is large enough for the data at the end: try a smaller piece
            else:
                return piece
        return 0

    def stop_compacting(self) -> None:
        if self._is_compacting:
            with self._resizing(), refusals("enlarge the pool", self._image):
                if not self._is_closed:
                    self._promise()

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
            with contextlib.suppress(OSError):  # the disk fails; the next opening reads how much is reserved
                if os.path.ismount(self.folder) and not filesystem.is_readonly(self.folder):
                    self._file.withdraw()
            mounts.umount(self.folder, mounts.MNT_DETACH)


def _refused(space: _Space, said: str) -> Growth:
    why = f"{mib(space.free_bytes)} are free in the pool, and it cannot grow: {said}"
    return Growth(GrowthOutcome.REFUSED, space.free_bytes, space.reserved_bytes, why)


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
            reserved = open_image(f"{home}/{IMAGE}", folder)
        else:
            reserved = make_image(home, folder, sizes)
        return LoopPool(home, sizes, reserved, give_room)
