"""A timer whose clock goes on while the machine is suspended: timerfd_create(2) with CLOCK_BOOTTIME."""

import contextlib
import os
import struct
import time

from waypoint.linux.calls import libc

_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_SPEC = struct.Struct("=4q")  # itimerspec: the interval and the first expiry, each in seconds and nanoseconds
_LEAST_NS = 1  # zero would disarm the timer


def now() -> float:
    """The time of the alarm's clock, in seconds since the machine's boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Alarm:
    """`fd` becomes readable at the set time; a suspended machine reports a time that has passed when it resumes."""

    def __init__(self) -> None:
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self.fd = libc.call("timerfd_create", time.CLOCK_BOOTTIME, flags)

    def set(self, at: float | None) -> None:
        """Set the alarm to the time `at` of its clock, in place of an earlier time; None: to no time."""
        expiry = 0 if at is None else max(_LEAST_NS, int(at * 1e9))
        spec = _SPEC.pack(0, 0, *divmod(expiry, 10**9))
        libc.call("timerfd_settime", self.fd, _ABSOLUTE, spec, None)

    def clear(self) -> None:
        """Make `fd` unreadable until the next set time."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)
