"""The segments of System V shared memory, the semaphores and the message queues of an IPC namespace (proc_sysvipc(5),
mq_overview(7)).
"""

import functools
import os
from collections.abc import Callable
from typing import TypeVar

from waypoint.linux.calls import libc
from waypoint.linux.tasks import namespaces

T = TypeVar("T")
_CREATE = 6  # FSCONFIG_CMD_CREATE


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


def message_queues(pid: int) -> list[str]:
    """The names of the POSIX message queues in the IPC namespace of process `pid`. Takes 0.1 ms. Raises OSError."""
    return _within(pid, _list_queues)


def _list_queues() -> list[str]:
    made = []
    try:
        made.append(libc.syscall("fsopen", b"mqueue", 0))
        libc.syscall("fsconfig", made[0], _CREATE, None, None, 0)
        made.append(libc.syscall("fsmount", made[0], 0, 0))
        made.append(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=made[1]))
        return os.listdir(made[2])
    finally:
        for one in made:
            os.close(one)


def _rows(pid: int, table: str) -> list[str]:
    return _within(pid, functools.partial(_read, table))[1:]


def _within(pid: int, work: Callable[[], T]) -> T:
    space = os.open(namespaces.path(pid, "ipc"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return namespaces.call_within(space, work, namespaces.CLONE_NEWIPC)
    finally:
        os.close(space)


def _read(table: str) -> list[str]:
    try:
        with open(f"/proc/sysvipc/{table}") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
