"""The processes of the machine, read with few system calls: the leak check runs before and after each test."""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.tasks import procfs

_KERNEL_THREAD = 0x200000  # PF_KTHREAD


class Process(NamedTuple):
    """`folder`: its folder in /proc. `key`: unique, even after another process gets the same pid."""

    pid: int
    folder: str
    key: str
    state: str
    parent: int


def read(path: str) -> bytes:
    """Read a file of /proc. Raises OSError if its process has ended."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def processes() -> Iterator[Process]:
    """Yield all processes except this one and kernel threads."""
    me = str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdecimal() and name != me:
            folder = f"/proc/{name}"
            with contextlib.suppress(OSError):
                fields = read(f"{folder}/stat").rpartition(b") ")[2].split(maxsplit=20)
                if not int(fields[6]) & _KERNEL_THREAD:
                    key = f"{name}@{fields[19].decode()}"
                    yield Process(int(name), folder, key, fields[0].decode(), int(fields[1]))


def name_of(pid: int) -> str:
    """Return the name (comm) of the process; "" if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return procfs.stat(pid).name
    return ""


def words_of(pid: int) -> list[str]:
    """Return the command line of the process; empty if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return procfs.command_line(pid)
    return []


def runs(pid: int) -> bool:
    """Whether the process has not ended; a zombie has."""
    with contextlib.suppress(ProcessLookupError):
        return procfs.stat(pid).state not in "ZX"
    return False
