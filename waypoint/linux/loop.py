"""Loop devices: a file as a block device (loop(4), linux/loop.h).

A device is made with LO_FLAGS_AUTOCLEAR: the kernel takes it down when its last user (a mount, an open descriptor)
is gone.
"""

import contextlib
import errno
import os
import struct
from dataclasses import dataclass
from types import TracebackType

from waypoint.linux.ioctls import ioctl

LO_FLAGS_READ_ONLY = 1
LO_FLAGS_AUTOCLEAR = 4
LO_FLAGS_DIRECT_IO = 16

_LOOP_SET_CAPACITY = 0x4C07
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_CONFIGURE = 0x4C0A  # Linux 5.8
_LOOP_CTL_GET_FREE = 0x4C82

_CONTROL = "/dev/loop-control"
_CONFIG = struct.Struct("=II52xI176x64x")  # loop_config: fd, block size, (loop_info64: ..., flags, ...), reserved
_STATUS = struct.Struct("=QQ36xI176x")  # loop_info64: device, inode, ..., flags, ...
_ATTEMPTS = 64


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """What is behind a loop device. `device`, `inode`: st_dev and st_ino of the file, however it is named today."""

    device: int
    inode: int
    flags: int


class LoopDevice:
    """An open loop device. Until it is closed the device stays, mounted or not; then it lives as long as its mounts."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def __enter__(self) -> "LoopDevice":
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def read_status(self) -> LoopStatus:
        """Raises OSError ENXIO if no file is attached (any more)."""
        buffer = bytearray(_STATUS.size)
        ioctl(self._fd, _LOOP_GET_STATUS64, buffer, name="LOOP_GET_STATUS64", path=self.path)
        device, inode, flags = _STATUS.unpack(buffer)
        return LoopStatus(device, inode, flags)

    def update_capacity(self) -> None:
        """Make the device as long as its file has become."""
        ioctl(self._fd, _LOOP_SET_CAPACITY, name="LOOP_SET_CAPACITY", path=self.path)


def attach(file_fd: int, *, block_bytes: int = 4096) -> LoopDevice:
    """Make a device of the file behind `file_fd` (open for reading and writing), with autoclear; direct I/O if it can.

    Direct I/O keeps the content out of the cache a second time; where the file system has none, the kernel goes on
    without (see `read_status().flags`). The same file attached twice is two devices that do not know of each other,
    which destroys a file system on it: use `find_attached` first. Raises OSError; FileNotFoundError where there are
    no loop devices at all.
    """
    for _ in range(_ATTEMPTS):
        path = f"/dev/loop{_find_free_number()}"
        try:
            return _configure(path, file_fd, block_bytes)
        except OSError as err:
            if err.errno != errno.EBUSY:  # else somebody was faster: take the next one
                raise
    raise OSError(errno.EBUSY, f"LOOP_CONFIGURE: {_ATTEMPTS} times another process took the free device", _CONTROL)


def _configure(path: str, file_fd: int, block_bytes: int) -> LoopDevice:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        arguments = bytearray(_CONFIG.pack(file_fd, block_bytes, LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO))
        ioctl(fd, _LOOP_CONFIGURE, arguments, name="LOOP_CONFIGURE", path=path)
        return _open(path)
    finally:
        os.close(fd)


def _open(path: str) -> LoopDevice:
    # Read-only: kernels without CONFIG_BLK_DEV_WRITE_MOUNTED (6.8) refuse a mount while the device is open for writing,
    # and refuse to open it so once it is mounted. Configuring alone needs a descriptor that can write.
    return LoopDevice(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _find_free_number() -> int:
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        return ioctl(control, _LOOP_CTL_GET_FREE, name="LOOP_CTL_GET_FREE", path=_CONTROL)
    finally:
        os.close(control)


def find_attached(file_fd: int) -> LoopDevice | None:
    """The device, if any, whose file is the very one behind `file_fd`, open so that it stays."""
    wanted = os.fstat(file_fd)
    for path in _list_attached():
        with contextlib.suppress(FileNotFoundError):  # its node was removed since it was listed
            device = _open(path)
            if _is_behind(device, wanted):
                return device
            device.close()
    return None


def _is_behind(device: LoopDevice, wanted: os.stat_result) -> bool:
    try:
        status = device.read_status()
    except OSError as err:
        if err.errno == errno.ENXIO:  # detached since it was listed
            return False
        raise
    return (status.device, status.inode) == (wanted.st_dev, wanted.st_ino)


def _list_attached() -> list[str]:
    """Paths of the devices that have a file; sysfs shows which."""
    return [f"/dev/{name}" for name in os.listdir("/sys/block") if os.path.isdir(f"/sys/block/{name}/loop")]
