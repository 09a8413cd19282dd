"""Signals, timers, and descriptors that tell of events."""

import ctypes
import os
import select
import signal
import struct
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.differences.objects import LIBC, PAUSE, call, child, kept, prctl, reported


@kept
def queued_signals() -> Generator[None, None, Any]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [34, 35])
    for number, value in ((35, 1), (34, 2), (35, 3)):
        LIBC.sigqueue(os.getpid(), number, ctypes.c_void_p(value))
    yield
    found = [signal.sigtimedwait([34, 35], 0) for _ in range(4)]
    return [one and (one.si_signo, one.si_code) for one in found]


@kept
def timer_of_the_day() -> Generator[None, None, Any]:
    """It expires at its time also in a copy that is made later."""
    timer = LIBC.timerfd_create(time.CLOCK_REALTIME, 0)
    at = int(time.time()) + 500
    LIBC.timerfd_settime(timer, 1, struct.pack("qqqq", 7, 0, at, 0), None)
    yield
    before, left = time.time(), struct.unpack("qqqq", timer_left(timer))
    return before - 0.05 < at - left[2] - left[3] / 1e9 < time.time() + 0.05, left[:2]


def timer_left(timer: int) -> bytes:
    buffer = ctypes.create_string_buffer(32)
    LIBC.timerfd_gettime(timer, buffer)
    return buffer.raw


@reported("timer-overruns")
def waiting_timer() -> Generator[None, None, Any]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [10])
    timer = ctypes.c_void_p()
    LIBC.timer_create(1, struct.pack("qii", 0, 10, 0) + bytes(48), ctypes.byref(timer))
    LIBC.timer_settime(timer, 0, struct.pack("qqqq", 0, 1_000_000, 0, 1_000_000), None)
    while 10 not in signal.sigpending():
        PAUSE.wait(0.001)
    yield
    return signal.sigwait([10])


@kept
def handlers() -> Generator[None, None, Any]:
    """What is done about signals, with flags and masks."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.siginterrupt(signal.SIGUSR1, False)  # noqa: FBT003
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
    yield
    found = ctypes.create_string_buffer(152)
    call("sigaction", int(signal.SIGUSR1), None, found)
    rows = Path("/proc/self/status").read_text().splitlines()
    lines = [row for row in rows if row.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    return found.raw[8:16].hex(), found.raw[136:140].hex(), lines


@kept
def interval_timers() -> Generator[None, None, Any]:
    for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(kind, 500, 70)
    yield
    found = [signal.getitimer(kind) for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
    return [(400 < left < 501, interval) for left, interval in found]


@kept
def timers() -> Generator[None, None, Any]:
    """Of the monotonic clock, the processor time of the process and of a thread, and one that is not armed."""
    made = [ctypes.c_void_p() for _ in range(4)]
    for clock, timer in zip((1, 2, 3, 1), made, strict=True):
        call("timer_create", clock, struct.pack("qii", 0, 10, 0) + bytes(48), ctypes.byref(timer))
    for timer in made[:3]:
        call("timer_settime", timer, 0, struct.pack("qqqq", 7, 0, 500, 0), None)
    yield
    found = ctypes.create_string_buffer(32)
    left = []
    for timer in made:
        call("timer_gettime", timer, found)
        interval, _, seconds, _ = struct.unpack("qqqq", found.raw)
        left.append((interval, 400 < seconds <= 500, call("timer_getoverrun", timer)))
    return left


@reported("timer-of-day")
def timer_on_the_clock() -> Generator[None, None, Any]:
    """A timer (timer_create(2)) of the time of day."""
    timer = ctypes.c_void_p()
    call("timer_create", 0, struct.pack("qii", 0, 10, 0) + bytes(48), ctypes.byref(timer))
    call("timer_settime", timer, 1, struct.pack("qqqq", 0, 0, int(time.time()) + 500, 0), None)
    yield
    found = ctypes.create_string_buffer(32)
    call("timer_gettime", timer, found)
    return 400 < struct.unpack("qqqq", found.raw)[2] <= 500


@kept
def death_signal() -> Generator[None, None, Any]:
    """A child that gets a signal when its parent ends."""
    reader, writer = os.pipe()

    def parent() -> None:
        child(lambda: (prctl(1, 9), os.write(writer, b".")))
        os.close(writer)

    pid = child(parent)
    os.close(writer)
    os.read(reader, 1)
    yield
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return os.read(reader, 1)


@kept
def counter() -> Generator[None, None, Any]:
    file = os.eventfd(5, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)
    yield
    return [os.eventfd_read(file) for _ in range(5)]


@kept
def signal_descriptor() -> Generator[None, None, Any]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    file = call("signalfd", -1, struct.pack("Q", 1 << signal.SIGUSR1 - 1), 0)
    os.kill(os.getpid(), signal.SIGUSR1)
    yield
    return struct.unpack_from("I", os.read(file, 128))


@kept
def unread_ticks() -> Generator[None, None, Any]:
    timer = call("timerfd_create", 1, 0)
    call("timerfd_settime", timer, 0, struct.pack("qqqq", 0, 10_000_000, 0, 10_000_000), None)
    select.select([timer], [], [])
    yield
    return struct.unpack("Q", os.read(timer, 8))[0] > 0, struct.unpack("qqqq", timer_left(timer))[:2]


@kept
def nested_polling() -> Generator[None, None, Any]:
    """epoll in epoll: a pipe edge-triggered, another that has been reported once."""
    inner, outer = select.epoll(), select.epoll()
    (first, into_first), (second, into_second) = os.pipe(), os.pipe()
    os.write(into_first, b"x"), os.write(into_second, b"x")
    inner.register(first, select.EPOLLIN | select.EPOLLET)
    inner.register(second, select.EPOLLIN | select.EPOLLONESHOT)
    outer.register(inner.fileno(), select.EPOLLIN)
    inner.poll(0)
    os.read(first, 1)
    yield
    before = inner.poll(0)
    os.write(into_first, b"x"), os.write(into_second, b"x")
    return before, outer.poll(0) == [(inner.fileno(), 1)], inner.poll(0) == [(first, 1)], inner.poll(0)


@kept
def watched_folder() -> Generator[None, None, Any]:
    """inotify, with a mask."""
    folder = tempfile.mkdtemp()
    file = call("inotify_init1", os.O_NONBLOCK)
    call("inotify_add_watch", file, folder.encode(), 0x100)
    yield
    Path(folder, "made").touch()
    return os.read(file, 99)[4:8].hex(), Path(folder, "made").stat().st_size
