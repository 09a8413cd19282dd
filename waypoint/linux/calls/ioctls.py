"""ioctl(2) that releases Python's global interpreter lock (GIL), whatever the size of its argument.

`fcntl.ioctl` keeps the GIL when its buffer has more than 1024 bytes. The argument of a btrfs snapshot has 4096 bytes,
and the snapshot lasts as long as its dirty data takes to be written: all other threads of the daemon would wait.
"""

import ctypes
import os

from waypoint.linux.calls import libc


def ioctl(fd: int, number: int, argument: int | bytearray = 0, *, name: str, path: str) -> int:
    """Call ioctl with request `number` and return its non-negative result. A bytearray is changed in place.

    Raises OSError with `name` (the request's name, for the message) and `path` (the file behind `fd`).
    """
    if isinstance(argument, bytearray):
        # This reference keeps the bytearray alive during the call: the caller may have no other reference.
        buffer = (ctypes.c_char * len(argument)).from_buffer(argument)
        return _call(fd, number, ctypes.addressof(buffer), name, path)
    return _call(fd, number, argument, name, path)


def _call(fd: int, number: int, argument: int, name: str, path: str) -> int:
    try:
        return libc.call("ioctl", fd, number, argument)
    except OSError as err:
        raise OSError(err.errno, f"{name}: {os.strerror(err.errno or 0)}", path) from None
