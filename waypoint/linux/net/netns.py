"""Running a function in another network namespace (setns(2), network_namespaces(7))."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from waypoint.linux.calls import libc
from waypoint.linux.tasks import namespaces, pidfd, procfs

_NS_GET_USERNS, _NS_GET_PARENT = 0xB701, 0xB702  # linux/nsfs.h
Result = TypeVar("Result")


def work_in(pid: int, work: Callable[[], Result]) -> Result:
    """Call `work` in the network namespace of process `pid` and return its result.

    A socket that `work` opens belongs to that namespace for good, so the caller can use the socket afterwards.
    Raises ProcessLookupError if the process has ended, OSError of setns(2), and whatever `work` raises.
    """
    process = pidfd.open(pid)
    try:
        return work_within(process, work)
    finally:
        os.close(process)


@contextlib.contextmanager
def opened_of_session(init: int, start: int) -> Iterator[int]:
    """A descriptor of the network namespace of a session, for the `with` block. `init`, `start`: pid and start time of
    its pid 1.

    Raises FileNotFoundError or ProcessLookupError if that has ended; PermissionError if it is in another network
    namespace: the machine's, or one of its own making (`--allow userns`), over which it has all rights.
    """
    fd = os.open(namespaces.path(init, "net"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not procfs.is_same(init, start):
            raise ProcessLookupError(errno.ESRCH, "it has ended")
        if not _is_owned_right_below(fd):
            raise PermissionError(errno.EPERM, "its pid 1 is in no network of the session's")
        yield fd
    finally:
        os.close(fd)


def _is_owned_right_below(fd: int) -> bool:
    """Whether the namespace behind `fd` belongs to a user namespace right below the caller's own (ioctl_ns(2))."""
    with contextlib.ExitStack() as opened, contextlib.suppress(PermissionError):  # the caller's own, or further out
        owner = libc.call("ioctl", fd, _NS_GET_USERNS, 0)
        opened.callback(os.close, owner)
        around = libc.call("ioctl", owner, _NS_GET_PARENT, 0)
        opened.callback(os.close, around)
        return os.path.samestat(os.fstat(around), os.stat("/proc/self/ns/user"))
    return False


def open_held_by(pid: int) -> int:
    """A descriptor of a network namespace that process `pid` holds open by one. Raises OSError."""
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"{folder}/{number}").startswith("net:["):
                return os.open(f"{folder}/{number}", os.O_RDONLY | os.O_CLOEXEC)
    raise FileNotFoundError(errno.ENOENT, "holds no network namespace", folder)


def work_within(fd: int, work: Callable[[], Result]) -> Result:
    """As `work_in`, in the network namespace behind the descriptor `fd`: of that, or of a process (pidfd)."""

    def enter_and_work() -> Result:
        namespaces.setns(fd, namespaces.CLONE_NEWNET)
        return work()

    # setns(2) changes the namespace of the calling thread only. A thread for this one call leaves the others alone.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(enter_and_work).result()
