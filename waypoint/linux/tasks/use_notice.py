"""Detects that a cgroup uses the processor: perf_event_open(2) with PERF_FLAG_PID_CGROUP.

cgroup2 itself has no such event: cpu.stat must be polled, and cpu.pressure reports waiting for the processor, not its
use. An armed counter costs nothing while no process of the group runs.
"""

import mmap
import os
import struct
from contextlib import ExitStack

from waypoint.linux.calls import libc
from waypoint.linux.calls.ioctls import ioctl

_ATTR = struct.Struct("IIQQQQQII8x")  # perf_event_attr, first version: type, size, config, period, ..., flags, wakeup
_SOFTWARE, _CPU_CLOCK, _DISABLED = 1, 0, 1
_FLAG_PID_CGROUP, _FLAG_CLOEXEC = 4, 8
_IOC_ENABLE, _IOC_DISABLE = 0x2400, 0x2401


class UseNotice:
    """Watches one cgroup2 group and all groups below. Disarmed at first.

    `fds`: one descriptor per processor. While armed, a descriptor becomes readable (POLLIN) whenever the group has used
    another `usec` microseconds of its processor.
    """

    def __init__(self, group: str, usec: int) -> None:
        """`group`: the path of the group. Raises OSError if the kernel has no such counters, does not let the caller
        use them, or has the controller perf_event in a version 1 hierarchy.
        """
        self.fds: list[int] = []
        self._opened = ExitStack()
        with ExitStack() as opened:
            fd = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, fd)
            for processor in _online():
                self.fds.append(self._open(fd, processor, 1000 * usec))
                opened.callback(os.close, self.fds[-1])
                # poll(2) reports nothing for a counter without a buffer. The buffer is never read; since it is mapped
                # read-only, the kernel overwrites it and it never becomes full.
                opened.callback(mmap.mmap(self.fds[-1], 2 * mmap.PAGESIZE, prot=mmap.PROT_READ).close)
            self._opened = opened.pop_all()

    def _open(self, group_fd: int, processor: int, period_ns: int) -> int:
        attr = _ATTR.pack(_SOFTWARE, _ATTR.size, _CPU_CLOCK, period_ns, 0, 0, _DISABLED, 1, 0)
        flags = _FLAG_PID_CGROUP | _FLAG_CLOEXEC
        return libc.syscall("perf_event_open", attr, group_fd, processor, -1, flags)

    def arm(self) -> None:
        """Start or resume counting."""
        for fd in self.fds:
            ioctl(fd, _IOC_ENABLE, name="PERF_EVENT_IOC_ENABLE", path="perf event")

    def disarm(self) -> None:
        """Stop counting. A readable descriptor stays readable until poll(2) has reported it once."""
        for fd in self.fds:
            ioctl(fd, _IOC_DISABLE, name="PERF_EVENT_IOC_DISABLE", path="perf event")

    def close(self) -> None:
        """Close the perf event counters. A second call does nothing."""
        self.fds = []
        self._opened.close()


def _online() -> list[int]:
    """Return the numbers of the online processors."""
    numbers: list[int] = []
    with open("/sys/devices/system/cpu/online") as file:
        for part in file.read().strip().split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers
