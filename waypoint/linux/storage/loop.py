"""Loop devices: a file as a block device (loop(4), linux/loop.h).

Devices are configured with LO_FLAGS_AUTOCLEAR: the kernel detaches the file when the device's last user (a mount or an
open descriptor) is gone.
"""

import contextlib
import errno
import os
import struct
from dataclasses import dataclass
from types import TracebackType

from waypoint.linux.calls.ioctls import ioctl

LO_FLAGS_AUTOCLEAR = 4
LO_FLAGS_DIRECT_IO = 16

_LOOP_SET_CAPACITY = 0x4C07
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_CONFIGURE = 0x4C0A  # Linux 5.8
_LOOP_CTL_GET_FREE = 0x4C82

_CONTROL = "/dev/loop-control"
_CONFIG = struct.Struct("=II52xI176x64x")  # loop_config: fd, block size, (loop_info64: ..., flags, ...), reserved
_STATUS = struct.Struct("=QQ36xI176x")  # loop_info64: device, inode, ..., flags, ...
_BLOCK_BYTES = 4096
_ATTEMPTS = 64


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """The file behind a loop device (st_dev and st_ino, which a rename does not change) and the device's flags."""

    device: int
    inode: int
    flags: int


class LoopDevice:
    """An open loop device. The file stays attached until `close` or, if the device is mounted, until it is
    unmounted.
    """

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def __enter__(self) -> "LoopDevice":
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def read_status(self) -> LoopStatus:
        """Which file is attached. Raises OSError ENXIO if none is."""
        buffer = bytearray(_STATUS.size)
        ioctl(self._fd, _LOOP_GET_STATUS64, buffer, name="LOOP_GET_STATUS64", path=self.path)
        device, inode, flags = _STATUS.unpack(buffer)
        return LoopStatus(device, inode, flags)

    def update_capacity(self) -> None:
        ioctl(self._fd, _LOOP_SET_CAPACITY, name="LOOP_SET_CAPACITY", path=self.path)


def attach(file_fd: int) -> LoopDevice:
    """Attach the file behind `file_fd` (open for reading and writing) to a free loop device, with autoclear.

    Call `find_attached` first: if a file is attached to two devices and both are mounted, the file system in it is
    destroyed. The device uses direct I/O, so that its content is not cached twice, if the file system under the file
    can (see `read_status().flags`). Raises OSError; FileNotFoundError if the kernel has no loop devices.
    """
    for _ in range(_ATTEMPTS):
        path = f"/dev/loop{_find_free_number()}"
        try:
            return _configure(path, file_fd)
        except OSError as err:
            if err.errno != errno.EBUSY:  # EBUSY: another process has taken this device
                raise
    said = f"LOOP_CONFIGURE: {_ATTEMPTS} times another process has taken the free device first"
    raise OSError(errno.EBUSY, said, _CONTROL)


def _configure(path: str, file_fd: int) -> LoopDevice:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        arguments = bytearray(_CONFIG.pack(file_fd, _BLOCK_BYTES, LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO))
        ioctl(fd, _LOOP_CONFIGURE, arguments, name="LOOP_CONFIGURE", path=path)
        return _open(path)
    finally:
        os.close(fd)


def _open(path: str) -> LoopDevice:
    # Read-only: kernels (since 6.8) without CONFIG_BLK_DEV_WRITE_MOUNTED refuse to mount a device that is open for
    # writing, and to open a mounted device for writing. Only LOOP_CONFIGURE needs a writable descriptor.
    return LoopDevice(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _find_free_number() -> int:
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        return ioctl(control, _LOOP_CTL_GET_FREE, name="LOOP_CTL_GET_FREE", path=_CONTROL)
    finally:
        os.close(control)


def find_attached(file_fd: int) -> LoopDevice | None:
    """The loop device to which the file behind `file_fd` is attached, opened; None if there is no such device."""
    wanted = os.fstat(file_fd)
    attached = [name for name in os.listdir("/sys/block") if os.path.isdir(f"/sys/block/{name}/loop")]
    for path in (f"/dev/{name}" for name in attached):
        with contextlib.suppress(FileNotFoundError):  # the device node was removed
            device = _open(path)
            if _is_behind(device, wanted):
                return device
            device.close()
    return None


def _is_behind(device: LoopDevice, wanted: os.stat_result) -> bool:
    try:
        status = device.read_status()
    except OSError as err:
        if err.errno == errno.ENXIO:  # detached meanwhile
            return False
        raise
    return (status.device, status.inode) == (wanted.st_dev, wanted.st_ino)
