"""The length of the pool's file: a reserved part, which has disk space, and behind it a promised part, which has none.

```
0              end of the chunks    reserved_bytes                           length of the file
├──────────────────┼────────────────────┼────────────────────────────────────────┤
  chunks of btrfs     headroom              promised: what the disk can still give
```

The file system is as large as the file. So `df` in a session shows what the session can have, and a program that
reserves 5 GB in one call (fallocate(2)) gets them. btrfs allocates its chunks from the start of the device, and the
pool's watch keeps the reserved part ahead of them. A write to the promised part would fail on a full disk, and btrfs
would become read-only. So the promise is taken back before the disk is full: the file system is made smaller, down to
the reserved part, which moves no data. From then on btrfs reports a full file system.
"""

import contextlib
import errno
import os

from waypoint.linux.storage import btrfs, filesystem, loop

LEAST_BYTES = 256 << 20  # btrfs is never smaller (btrfs_ioctl_resize)
_SIZE_UNIT_BYTES = 1 << 20  # all sizes of the file are multiples of this
_CHUNK_BYTES = 256 << 20  # small ones leave less space partly used, and are joined faster by a compaction
_MOST_BYTES = 8 << 40  # ext4 has no file of 16 TiB or more


class PoolFile:
    """The file of a mounted pool. Only one thread at a time may call the methods that change it.

    `reserved_bytes`: the first bytes of the file that have disk space. All methods raise OSError.
    """

    def __init__(self, path: str, folder: str, reserved_bytes: int) -> None:
        self._path = path
        self._folder = folder
        self.reserved_bytes = reserved_bytes

    def reserve(self, size: int) -> None:
        """Make the reserved part at least `size` bytes long. After ENOSPC its size is unchanged, and nothing is
        promised any more.
        """
        if size <= self.reserved_bytes:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            filesystem.reserve_space(fd, size, self._path)
        except OSError:
            self._shrink(max(self.reserved_bytes, self._end_of_chunks()))  # frees the part that was reserved
            raise
        finally:
            os.close(fd)
        self.reserved_bytes = size

    def promise(self, size: int) -> None:
        """Make the file system `size` bytes large, but not smaller than its chunks and the reserved part."""
        size = max(min(whole(size), _MOST_BYTES), self.reserved_bytes)
        if size < btrfs.space_on_device(self._folder).total_bytes:
            self._shrink(max(size, self._end_of_chunks()))
        else:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                extend(fd, self._folder, size)
            finally:
                os.close(fd)
            with contextlib.suppress(OSError):  # an older kernel, or a file system so small that its chunks are, too
                btrfs.limit_chunks(self._folder, _CHUNK_BYTES)

    def withdraw(self) -> None:
        """Promise nothing: afterwards the whole file has disk space. Raises ENOSPC if chunks without disk space, which
        btrfs has allocated in the last milliseconds, get none.
        """
        self.reserve(least_bytes(self._folder))
        self.promise(self.reserved_bytes)

    def cut(self, size: int) -> None:
        """Make the file system smaller, by moving data if necessary, and the reserved part too."""
        resize(self._folder, size)
        self._cut_file(size)
        self.reserved_bytes = min(self.reserved_bytes, size)

    def _shrink(self, size: int) -> None:
        resize(self._folder, size)
        self._cut_file(size)

    def _end_of_chunks(self) -> int:
        return end_of_chunks(self._folder)

    def _cut_file(self, size: int) -> None:
        """Shorten the file to `size`; the file system in it was made smaller before. After a crash in between, the file
        is longer than the file system, which does no harm.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            _tell_device(fd, self._folder)
        finally:
            os.close(fd)


def extend(fd: int, folder: str, size: int) -> None:
    """Enlarge the file `fd` if it is shorter, its device and the file system to `size`. Completes what a crash has
    interrupted.
    """
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)
    # The file's length must be durable first: btrfs refuses to mount a device that is shorter than its file system.
    os.fsync(fd)
    _tell_device(fd, folder)
    resize(folder, size)


def resize(folder: str, size: int) -> None:
    """Resize the file system. A balance that a killed daemon left running is cancelled, because btrfs refuses to resize
    meanwhile.
    """
    try:
        btrfs.resize(folder, size)
    except OSError as err:
        if err.errno != errno.EBUSY:
            raise
        btrfs.cancel_balance(folder)
        btrfs.resize(folder, size)


def end_of_chunks(folder: str) -> int:
    """Where the chunks of the mounted pool end, as a size of the file."""
    return whole(btrfs.end_of_chunks(folder) + _SIZE_UNIT_BYTES - 1)


def least_bytes(folder: str) -> int:
    """The least size of the reserved part of the mounted pool: it has all chunks, and btrfs is never smaller."""
    return max(end_of_chunks(folder), min(LEAST_BYTES, btrfs.space_on_device(folder).total_bytes))


def whole(size: int) -> int:
    return size // _SIZE_UNIT_BYTES * _SIZE_UNIT_BYTES


def _tell_device(fd: int, folder: str) -> None:
    device = loop.find_attached(fd)
    if device is None:
        raise OSError(errno.ENODEV, "the pool's file was replaced while it was in use", folder)
    with device:
        device.update_capacity()
