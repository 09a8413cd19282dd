"""Running a function in another network namespace (setns(2), network_namespaces(7))."""

import contextlib
import errno
import fcntl
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from waypoint.linux.calls import abilities
from waypoint.linux.tasks import namespaces, pidfd

Result = TypeVar("Result")
_SIOCGSKNS = 0x894C  # linux/sockios.h


def work_in(pid: int, work: Callable[[], Result]) -> Result:
    """Call `work` in the network namespace of process `pid` and return its result.

    A socket that `work` opens stays in that namespace, so the caller can use it afterwards. Raises ProcessLookupError
    if the process has ended.
    """
    process = pidfd.open(pid)
    try:
        return work_within(process, work)
    finally:
        os.close(process)


def open_of(pid: int) -> int:
    """Open the network namespace of process `pid`; return the descriptor. Raises FileNotFoundError if the process has
    ended.
    """
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def open_held_by(pid: int) -> int:
    """Open a network namespace of which process `pid` has a descriptor; return a new descriptor. Raises OSError if the
    process has no such descriptor.
    """
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"{folder}/{number}").startswith("net:["):
                return os.open(f"{folder}/{number}", os.O_RDONLY | os.O_CLOEXEC)
    raise FileNotFoundError(errno.ENOENT, "no descriptor of a network namespace", folder)


def is_own(sock: socket.socket) -> bool:
    """Return True if the socket is in the caller's network namespace."""
    fd = fcntl.ioctl(sock, _SIOCGSKNS)
    try:
        return os.path.samestat(os.fstat(fd), os.stat("/proc/self/ns/net"))
    finally:
        os.close(fd)


def work_within(fd: int, work: Callable[[], Result]) -> Result:
    """Call `work` in the network namespace behind `fd` (its descriptor, or a pidfd) and return its result."""
    return _work_behind(lambda: namespaces.setns(fd, namespaces.CLONE_NEWNET), work)


def work_in_new(work: Callable[[], Result]) -> Result:
    """Call `work` in a new network namespace and return its result."""
    return _work_behind(lambda: namespaces.unshare(namespaces.CLONE_NEWNET), work)


def _work_behind(enter: Callable[[], None], work: Callable[[], Result]) -> Result:
    """Call `work` after `enter`, which changes the network namespace of the calling thread only, and return to the
    thread's own namespace. The main thread stays in its own, because /proc/self shows it; another thread does the work,
    whose start takes up to some milliseconds on a busy machine.
    """
    if threading.current_thread() is threading.main_thread():
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(lambda: _work_behind(enter, work)).result()
    if not abilities.own().host_namespaces:
        with ThreadPoolExecutor(max_workers=1) as thread:  # which ends in the other namespace
            thread.submit(enter).result()
            return thread.submit(work).result()
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter()
        try:
            return work()
        finally:
            _return_to(own)
    finally:
        os.close(own)


def _return_to(own: int) -> None:
    """Enter the namespace `own`. The thread must not go on in the other one, so this is tried again without memory."""
    while True:
        try:
            return namespaces.setns(own, namespaces.CLONE_NEWNET)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
