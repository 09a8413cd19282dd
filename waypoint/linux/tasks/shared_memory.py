"""The segments of System V shared memory, and the semaphores, of an IPC namespace (proc_sysvipc(5))."""

import functools
import os

from waypoint.linux.tasks import namespaces


def segments(pid: int) -> dict[int, int]:
    """The size in bytes of each segment in the IPC namespace of process `pid`, by id; empty if the kernel has no such
    memory. Takes 0.1 ms. Raises OSError if the process has ended.
    """
    return {int(words[1]): int(words[3]) for words in map(str.split, _rows(pid, "shm"))}


def has_semaphores(pid: int) -> bool:
    """Return True if the IPC namespace of process `pid` has System V semaphores. Takes 0.1 ms. Raises OSError if the
    process has ended.
    """
    return bool(_rows(pid, "sem"))


def _rows(pid: int, table: str) -> list[str]:
    space = os.open(namespaces.path(pid, "ipc"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return namespaces.call_within(space, functools.partial(_read, table), namespaces.CLONE_NEWIPC)[1:]
    finally:
        os.close(space)


def _read(table: str) -> list[str]:
    try:
        with open(f"/proc/sysvipc/{table}") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
