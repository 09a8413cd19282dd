"""When a file was made (statx(2)), which Python's os.stat does not tell."""

import ctypes
import os
import struct

from waypoint.linux.calls import libc

_AT_SYMLINK_NOFOLLOW, _BTIME = 0x100, 0x800
_BYTES = 256  # struct statx (linux/stat.h)
_MASK, _BTIME_AT = struct.Struct("=I"), (struct.Struct("=qI"), 80)


def birth_ns(folder: int, name: str) -> int:
    """The time when the entry `name` of the folder was made, in nanoseconds since the epoch; 0 if the file system does
    not know it. Raises OSError.
    """
    found = ctypes.create_string_buffer(_BYTES)
    libc.syscall("statx", folder, os.fsencode(name), _AT_SYMLINK_NOFOLLOW, _BTIME, found)
    (mask,) = _MASK.unpack_from(found)
    form, place = _BTIME_AT
    seconds, nanoseconds = form.unpack_from(found, place)
    return int(seconds) * 10**9 + int(nanoseconds) if mask & _BTIME else 0
