"""ioctl(2) without holding Python's lock, whatever the size of the argument.

`fcntl.ioctl` keeps the GIL when its buffer has more than 1024 bytes. A btrfs snapshot takes 4096, and as long as
there is dirty data to write out: every other thread of the daemon would stand still for that time.
"""

import ctypes
import os

from waypoint.linux import libc


def ioctl(fd: int, number: int, argument: int | bytearray = 0, *, name: str, path: str) -> int:
    """Call ioctl; a bytearray is passed by address and changed in place. Return the call's (non-negative) result.

    Raises OSError with `name` (that of the request, for people) and `path` (what `fd` is).
    """
    if isinstance(argument, bytearray):
        argument = ctypes.addressof((ctypes.c_char * len(argument)).from_buffer(argument))
    try:
        return libc.call("ioctl", fd, number, argument)
    except OSError as err:
        raise OSError(err.errno, f"{name}: {os.strerror(err.errno or 0)}", path) from None
