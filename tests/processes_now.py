"""The processes of the machine, any of which may end while it is looked at.

All are read with as few system calls as can be: the leak check does so around each test.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.tasks import procfs

_KERNEL_THREAD = 0x200000  # PF_KTHREAD
_ARG_START, _EXIT_CODE = 45, 49  # fields of /proc/PID/stat, counted from the state


class Process(NamedTuple):
    """`folder`: its folder in /proc. `key`: tells it from later ones of its pid. `program`: another text
    as soon as the process has become another program, or has taken another name.
    """

    pid: int
    folder: str
    key: str
    program: str
    state: str
    parent: int


def read(path: str) -> bytes:
    """Raises OSError, also if the process has ended."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def processes() -> Iterator[Process]:
    """All but this one, and without the kernel's own threads. Those that end meanwhile may be missing."""
    left_out = {str(os.getpid()), *_kernel_threads()}
    for name in os.listdir("/proc"):
        if name.isdecimal() and name not in left_out:
            folder = f"/proc/{name}"
            with contextlib.suppress(OSError):
                before, _, after = read(f"{folder}/stat").rpartition(b") ")
                fields = after.split()
                if not int(fields[6]) & _KERNEL_THREAD:
                    key = f"{name}@{fields[19].decode()}"
                    # Where its arguments and its environment lie is another place after each execve(2).
                    program = b" ".join((before, *fields[_ARG_START:_EXIT_CODE])).decode(errors="replace")
                    yield Process(int(name), folder, key, program, fields[0].decode(), int(fields[1]))


def _kernel_threads() -> list[str]:
    """Those that are known without a look at each: the children of kthreadd."""
    with contextlib.suppress(OSError):
        if int(read("/proc/2/stat").rpartition(b") ")[2].split(maxsplit=7)[6]) & _KERNEL_THREAD:
            return read("/proc/2/task/2/children").decode().split()
    return []


def name_of(pid: int) -> str:
    """Empty if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        return procfs.stat(pid).name
    return ""


def words_of(pid: int) -> list[str]:
    """Its command line; nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        return procfs.command_line(pid)
    return []


def runs(pid: int) -> bool:
    """False for a process that has ended, reaped or not."""
    with contextlib.suppress(ProcessLookupError):
        return procfs.stat(pid).state not in "ZX"
    return False
