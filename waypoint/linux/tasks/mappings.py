"""The memory of a process: its mappings and their content (proc_pid_maps(5), proc_pid_mem(5)).

The caller must be allowed to trace the process. Every function raises OSError if the process has ended.
"""

import os
import resource
import struct
from typing import NamedTuple

PAGE = resource.getpagesize()
_ANONYMOUS = 0b100  # bits 63 to 61 of an entry of /proc/PID/pagemap: in memory, not swapped, not of a file


class Mapping(NamedTuple):
    """The memory from address `start` up to, but not including, `end`. `rights`: for example `r-xp`. `offset`: the
    offset of `start` in the file. `inode`: of the file; of System V shared memory, the segment's id. `path`: the file,
    a word in brackets such as `[heap]`, or empty.
    """

    start: int
    end: int
    rights: str
    offset: int
    inode: int
    path: str


def read_mappings(pid: int) -> list[Mapping]:
    """Return the mappings of the process (or thread) `pid`, sorted by address."""
    found = []
    with open(f"/proc/{pid}/maps", errors="surrogateescape") as file:
        for line in file:
            span, rights, offset, _device, inode, *path = line.rstrip("\n").split(maxsplit=5)
            start, _, end = span.partition("-")
            found.append(Mapping(int(start, 16), int(end, 16), rights, int(offset, 16), int(inode), "".join(path)))
    return found


def read(pid: int, start: int, size: int) -> bytes:
    """Return at most `size` bytes of the memory from the address `start` on."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, start)


def write(pid: int, start: int, content: bytes) -> None:
    """Write to the memory, even where the process itself must not write. The file of a private mapping is not
    changed.
    """
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), content, start)


def is_present(pid: int, start: int, size: int) -> bool:
    """Whether all pages of this memory are private ones in memory, so that a read waits for nothing."""
    first, last = start // PAGE, (start + size - 1) // PAGE
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        entries = os.pread(pagemap.fileno(), 8 * (last - first + 1), 8 * first)
    found = struct.unpack(f"<{len(entries) // 8}Q", entries)
    return len(found) == last - first + 1 and all(entry >> 61 == _ANONYMOUS for entry in found)
