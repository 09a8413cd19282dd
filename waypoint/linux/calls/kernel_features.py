"""Probes for kernel features that CRIU may use."""

import ctypes
import mmap
import os
import struct

from waypoint.linux.calls import libc
from waypoint.linux.calls.ioctls import ioctl

_UFFDIO_API = 0xC018AA3F  # linux/userfaultfd.h
_API = 0xAA
_EVENT_FORK = 1 << 1
_SOFT_DIRTY = 1 << 55  # Documentation/admin-guide/mm/soft-dirty.rst


def follows_faults() -> bool:
    """True if this process may use userfaultfd(2) with fork events."""
    try:
        fd = libc.syscall("userfaultfd", os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    wanted = bytearray(struct.pack("=QQQ", _API, _EVENT_FORK, 0))  # struct uffdio_api
    try:
        ioctl(fd, _UFFDIO_API, wanted, name="UFFDIO_API", path="userfaultfd")
    except OSError:  # EINVAL: the requested feature is missing
        return False
    finally:
        os.close(fd)
    return True


def tracks_memory() -> bool:
    """True if the kernel tracks written pages (CONFIG_MEM_SOFT_DIRTY)."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        view = (ctypes.c_char * mmap.PAGESIZE).from_buffer(page)
        place = ctypes.addressof(view) // mmap.PAGESIZE * 8
        page[0] = 1
        try:
            with open("/proc/self/clear_refs", "w") as clear:
                clear.write("4")
            was_dirty = _is_dirty(place)
            page[0] = 2
            return not was_dirty and _is_dirty(place)
        except OSError:
            return False
        finally:
            del view  # else the mapping could not be closed


def _is_dirty(place: int) -> bool:
    """Whether the page whose entry is at `place` of /proc/self/pagemap has been written."""
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(place)
        return bool(int.from_bytes(pagemap.read(8), "little") & _SOFT_DIRTY)
