"""Runs in a session: waits in system calls, and has stopped children for which signals wait.

Writes "ready" to waiter.log when all wait. When waiter.ask exists, it ends the calls that have no timeout, continues
the children, and writes what each call has returned and what the children have received.
"""

import ctypes
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

LONG_S = 1_000_000
FAILED_S = 20  # a signal that has not arrived by then is lost
WRITTEN = 200_000  # more than fits into a pipe
SENT = 5  # signals to the listener
LOG = Path("/root/waiter.log")
ASK = Path("/root/waiter.ask")
POLL, NANOSLEEP, SIGTIMEDWAIT, FUTEX, CLOCK_NANOSLEEP, EPOLL_WAIT = 7, 35, 128, 202, 230, 232
FUTEX_WAIT, FUTEX_WAIT_BITSET = 0, 9

libc = ctypes.CDLL(None, use_errno=True)
semaphore = libc.semget(0, 1, 0o600)
pipe_read, pipe_write = os.pipe()
full_read, full_write = os.pipe()
results: dict[str, int] = {}
threads: dict[str, int] = {}


def call(number: int, *args: object) -> int:
    """The result of a system call, or its negative errno."""
    result = libc.syscall(number, *args)
    return -ctypes.get_errno() if result == -1 else int(result)


def seconds(count: float) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("qq", int(count), 0))


def sleep_as_libc() -> int:
    time_left = seconds(LONG_S)
    return call(CLOCK_NANOSLEEP, time.CLOCK_REALTIME, 0, time_left, time_left)


def nanosleep() -> int:
    time_left = seconds(LONG_S)
    return call(NANOSLEEP, time_left, time_left)


def absolute_futex() -> int:
    until = seconds(time.monotonic() + LONG_S)
    return call(FUTEX, ctypes.create_string_buffer(8), FUTEX_WAIT_BITSET, 0, until, None, -1)


def poll() -> int:
    return call(POLL, ctypes.create_string_buffer(struct.pack("ihh", pipe_read, select.POLLIN, 0)), 1, -1)


def epoll() -> int:
    waiting = select.epoll()
    waiting.register(pipe_read, select.EPOLLIN)
    return call(EPOLL_WAIT, waiting.fileno(), ctypes.create_string_buffer(16), 1, -1)


def semop() -> int:
    result = libc.semop(semaphore, struct.pack("HhH", 0, -1, 0), 1)
    return -ctypes.get_errno() if result == -1 else int(result)


def sigtimedwait() -> int:
    return call(SIGTIMEDWAIT, ctypes.create_string_buffer(struct.pack("Q", 1 << (signal.SIGUSR2 - 1))), None, None, 8)


def write() -> int:
    return os.write(full_write, bytes(range(200)) * (WRITTEN // 200))


def relative_poll() -> int:
    return call(POLL, None, 0, LONG_S)


def relative_futex() -> int:
    return call(FUTEX, ctypes.create_string_buffer(8), FUTEX_WAIT, 0, seconds(LONG_S), None, 0)


ENDED = (poll, epoll, semop, sigtimedwait, write)
ENDLESS = (sleep_as_libc, nanosleep, absolute_futex)
RELATIVE = (relative_poll, relative_futex)  # exact in the running session only


def wait_in(function: Callable[[], int]) -> None:
    threads[function.__name__] = threading.get_native_id()
    results[function.__name__] = function()


def is_waiting(tid: int) -> bool:
    return Path(f"/proc/self/task/{tid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def stopped_child(write_to: int | None) -> int:
    """A stopped child. `write_to`: where the child writes the numbers of the signals that it receives."""
    if child := os.fork():
        if write_to is not None:
            os.read(pipe_read, 1)
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        return child
    if write_to is not None:
        os.set_blocking(write_to, False)
        signal.set_wakeup_fd(write_to)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGCONT, signal.SIGRTMIN):
            signal.signal(number, lambda *_: None)
        os.write(pipe_write, b"x")
    while True:
        signal.pause()


received, numbers = os.pipe()
listener = stopped_child(numbers)
victim = stopped_child(None)
os.kill(victim, signal.SIGTERM)
for number in (signal.SIGRTMIN, signal.SIGUSR1, signal.SIGHUP, signal.SIGRTMIN):
    os.kill(listener, number)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
for function in (*ENDED, *ENDLESS, *RELATIVE):
    threading.Thread(target=wait_in, args=[function], daemon=True).start()
while len(threads) < len((*ENDED, *ENDLESS, *RELATIVE)) or not all(map(is_waiting, threads.values())):
    time.sleep(0.01)
LOG.write_text("ready\n")
while not ASK.exists():
    time.sleep(0.02)
os.write(pipe_write, b"x")
libc.semop(semaphore, struct.pack("HhH", 0, 1, 0), 1)
os.kill(os.getpid(), signal.SIGUSR2)
content = b""
while len(content) < results.get("write", WRITTEN):
    content += os.read(full_read, WRITTEN)
if content != bytes(range(200)) * (WRITTEN // 200):
    results["write"] = -len(content)
while not all(function.__name__ in results for function in ENDED):
    time.sleep(0.01)
is_notified = os.waitpid(victim, os.WNOHANG | os.WUNTRACED) != (0, 0)
os.kill(victim, signal.SIGCONT)
ended_by = os.WTERMSIG(os.waitpid(victim, 0)[1])
os.kill(listener, signal.SIGCONT)
got = b""
while len(got) < SENT and select.select([received], [], [], FAILED_S)[0]:
    got += os.read(received, 64)
with LOG.open("a") as log:
    for name, result in sorted(results.items()):
        print(name, result, file=log)
    print(f"signals: {sorted(got)} {ended_by}{' again' if is_notified else ''}", file=log)
os.kill(listener, signal.SIGKILL)
os._exit(0)
