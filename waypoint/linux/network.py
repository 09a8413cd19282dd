"""The network namespace of the calling thread, or of a process: loopback and settings (netdevice(7), ip-sysctl)."""

import fcntl
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from waypoint.linux import namespaces, pidfd

Made = TypeVar("Made")

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def raise_loopback() -> None:
    """Bring `lo` up; it has 127.0.0.1 and ::1 from then on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", request)[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def write_setting(name: str, value: str) -> None:
    """Write `/proc/sys/net/<name>` of this network namespace."""
    with open(f"/proc/sys/net/{name}", "w") as file:
        file.write(value)


def work_in(pid: int, work: Callable[[], Made]) -> Made:
    """Do `work` in the network namespace of `pid` and return what it made: a socket stays in its namespace."""

    def enter_and_work() -> Made:
        process = pidfd.open(pid)
        try:
            namespaces.setns(process, namespaces.CLONE_NEWNET)
        finally:
            os.close(process)
        return work()

    # A thread: it alone changes its namespace, and it is gone afterwards.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(enter_and_work).result()
