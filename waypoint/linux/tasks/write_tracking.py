"""Which pages of a process have been written since a moment: asynchronous write protection (userfaultfd(2), Linux 6.7).

A `Tracker` is a userfaultfd of the process, which the process itself must make; it is registered on mappings with
UFFD_FEATURE_WP_ASYNC. The first write to a protected page, also by the kernel (read(2)), clears the page's protection
and goes on: no handler is asked, so UFFD_USER_MODE_ONLY is enough, which needs no privileges. It costs 0.8 microseconds
on the machine of docs/criu.md. PAGEMAP_SCAN lists the pages without protection.

The kernel drops the protection of all mappings when the last descriptor is closed, and that of one mapping when it is
unmapped, moved, inherited by a child, or replaced by another program. Unprotected pages count as written. Sources:
linux/userfaultfd.h, linux/fs.h, Documentation/admin-guide/mm/{userfaultfd,pagemap}.rst.
"""

import contextlib
import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from waypoint.linux.calls import libc, machine
from waypoint.linux.tasks import mappings, pidfd, ptrace
from waypoint.linux.tasks.mappings import PAGE

_USER_MODE_ONLY = 1
_API, _API_VERSION = 0xC018AA3F, 0xAA
_REGISTER, _MODE_WP = 0xC020AA00, 2
_WP_ASYNC = 1 << 15
_SCAN = 0xC0606610
_WP_MATCHING, _CHECK_WPASYNC = 1, 2
_WP_ALLOWED, _WRITTEN, _PRESENT, _SWAPPED, _PFNZERO = (1 << bit for bit in (0, 1, 3, 4, 5))
_ARGUMENT = struct.Struct("<12Q")  # struct pm_scan_arg
_FIRST_KERNEL = (6, 12, 10)
_GUARD = 1 << 8  # since Linux 6.15: a page of MADV_GUARD_INSTALL, which has no content
_WALK_END = 32
_REGION = struct.Struct("<3Q")  # struct page_region
_REGIONS = 4096
_USERFAULTFD, _CLOSE = 323, 3  # on x86-64
_COPIED_BYTES = 4 << 20


class Span(NamedTuple):
    """The memory from address `start` up to, but not including, `end`."""

    start: int
    end: int


def is_supported() -> bool:
    """Whether this kernel has asynchronous write protection, and tasks can be made to use it.

    Linux before 6.12.10 is left out: there mremap(2) leaves a page marked as unwritten that can be written
    (CVE-2025-21696), so that a changed page could be taken for an unchanged one.
    """
    if machine.architecture() != "x86_64" or machine.kernel_version() < _FIRST_KERNEL:
        return False
    with contextlib.suppress(OSError):
        fd = libc.syscall("userfaultfd", os.O_CLOEXEC | _USER_MODE_ONLY)
        try:
            _enable(fd)
        finally:
            os.close(fd)
        return True
    return False


class Tracker:
    """The write protection of one process. Every method raises OSError."""

    def __init__(self, pid: int) -> None:
        """Have the process make its userfaultfd. It must be stopped by ptrace (linux/tasks/ptrace.py), and none of the
        tasks that share its descriptors may run: on return the process has this descriptor no more.
        """
        self.pid = pid
        code = ptrace.code_place(pid)
        number = _checked(ptrace.system_call(pid, code, _USERFAULTFD, os.O_CLOEXEC | _USER_MODE_ONLY))
        try:
            process = os.pidfd_open(pid)
            try:
                self._fd = pidfd.getfd(process, number)
            finally:
                os.close(process)
        finally:
            ptrace.system_call(pid, code, _CLOSE, number)
        try:
            _enable(self._fd)
        except OSError:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """End the protection."""
        os.close(self._fd)

    def register(self, mapping: Span) -> None:
        """Track the mapping. No-op if it is tracked already. Raises OSError EBUSY if the process itself uses another
        userfaultfd there.
        """
        packed = struct.pack("<4Q", mapping.start, mapping.end - mapping.start, _MODE_WP, 0)
        argument = ctypes.create_string_buffer(packed, len(packed))
        libc.call("ioctl", self._fd, _REGISTER, ctypes.addressof(argument))

    def protect(self, mapping: Span) -> list[Span]:
        """Protect all pages of the registered mapping that have content; return them."""
        return list(_scan(self.pid, mapping, _WP_MATCHING | _CHECK_WPASYNC, 0, 0))

    def unwritten(self, mapping: Span) -> list[Span]:
        """The pages in `mapping` that are protected still."""
        return list(_scan(self.pid, mapping, 0, _WP_ALLOWED | _WRITTEN, _WRITTEN))


def _scan(pid: int, mapping: Span, flags: int, mask: int, inverted: int) -> Iterator[Span]:
    """The pages with content, without the zero page and guard pages, that have the categories in `mask` except for
    those in `inverted`, which they lack. Takes 1.5 ms for 1 GiB; the category of pages of files would make that 20.
    """
    regions = ctypes.create_string_buffer(_REGIONS * _REGION.size)
    place, absent = mapping.start, _without_content()
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        while place < mapping.end:
            packed = _ARGUMENT.pack(
                _ARGUMENT.size,
                flags,
                place,
                mapping.end,
                0,
                ctypes.addressof(regions),
                _REGIONS,
                0,
                inverted | absent,
                mask | absent,
                _PRESENT | _SWAPPED,
                _PRESENT,
            )
            argument = ctypes.create_string_buffer(packed, len(packed))
            count = libc.call("ioctl", pagemap.fileno(), _SCAN, ctypes.addressof(argument))
            (place,) = struct.unpack_from("<Q", argument, _WALK_END)
            for number in range(count):
                start, end, _ = _REGION.unpack_from(regions, number * _REGION.size)
                yield Span(start, end)


@functools.cache
def _without_content() -> int:
    """The categories of pages without content that this kernel knows."""
    packed = _ARGUMENT.pack(_ARGUMENT.size, 0, 0, PAGE, 0, 0, 0, 0, 0, _GUARD, 0, 0)
    argument = ctypes.create_string_buffer(packed, len(packed))
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap, contextlib.suppress(OSError):
        libc.call("ioctl", pagemap.fileno(), _SCAN, ctypes.addressof(argument))
        return _PFNZERO | _GUARD
    return _PFNZERO


def copy(pid: int, spans: list[Span], target_fd: int, on_progress: Callable[[int], None]) -> list[Span]:
    """Write the memory of the process in `spans` to the end of a file, and return what was written; pages that are gone
    are left out. `on_progress`: gets the bytes done so far. Raises OSError.
    """
    done = 0
    buffer = ctypes.create_string_buffer(_COPIED_BYTES)
    written: list[Span] = []
    for span in spans:
        start = span.start
        while start < span.end:
            wanted = min(span.end - start, _COPIED_BYTES)
            size = _read(pid, start, wanted, buffer) // PAGE * PAGE or _read_forbidden(pid, start, buffer)
            if size:
                _write(target_fd, memoryview(buffer)[:size])
                if written and written[-1].end == start:
                    written[-1] = Span(written[-1].start, start + size)
                else:
                    written.append(Span(start, start + size))
            start += size or PAGE
            on_progress(done + start - span.start)
        done += span.end - span.start
    return written


def _read(pid: int, start: int, size: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
    """Read memory by process_vm_readv(2). Returns the number of bytes up to a page that cannot be read."""
    local = ctypes.create_string_buffer(struct.pack("<2Q", ctypes.addressof(buffer), size), 16)
    remote = ctypes.create_string_buffer(struct.pack("<2Q", start, size), 16)
    try:
        return libc.call("process_vm_readv", pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        return 0


def _read_forbidden(pid: int, start: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
    """Read a page that the process itself must not read. Returns 0 if there is no page."""
    with contextlib.suppress(OSError):
        content = mappings.read(pid, start, PAGE)
        ctypes.memmove(buffer, content, len(content))
        return len(content) // PAGE * PAGE
    return 0


def _write(fd: int, content: memoryview) -> None:
    while content:
        content = content[os.write(fd, content) :]


def _enable(fd: int) -> None:
    argument = ctypes.create_string_buffer(struct.pack("<3Q", _API_VERSION, _WP_ASYNC, 0), 24)
    libc.call("ioctl", fd, _API, ctypes.addressof(argument))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
