"""The memory of a process: what is mapped where, and what is in it (proc_pid_maps(5), proc_pid_mem(5)).

The caller must be allowed to trace the process. Every function raises OSError if the process is gone.
"""

import os
from typing import NamedTuple

from waypoint.linux.tasks import procfs


class Mapping(NamedTuple):
    """The addresses from `start` to before `end`. `rights`: as in `r-xp`. `offset`: where in the file it begins.
    `path`: the file, a word in brackets such as `[heap]`, or empty.
    """

    start: int
    end: int
    rights: str
    offset: int
    path: str


def read_mappings(pid: int) -> list[Mapping]:
    """The mappings of the process, or of the process of the thread, `pid`, in the order of their addresses."""
    found = []
    for line in filter(None, procfs.lines(pid, "maps")):
        span, rights, offset, _device, _inode, *path = line.split(maxsplit=5)
        start, _, end = span.partition(b"-")
        where = int(start, 16), int(end, 16), rights.decode("ascii"), int(offset, 16)
        found.append(Mapping(*where, os.fsdecode(b"".join(path))))
    return found


def read(pid: int, start: int, size: int) -> bytes:
    """At most `size` bytes of the memory from the address `start` on."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, start)


def write(pid: int, start: int, content: bytes) -> None:
    """Write into the memory, also where the process itself may not. The file of a private mapping stays as it is."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), content, start)


def read_file(pid: int, mapping: Mapping, size: int) -> bytes:
    """The first `size` bytes of what the mapping's file has, even if the file has no name any more."""
    with open(f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}", "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, mapping.offset)
