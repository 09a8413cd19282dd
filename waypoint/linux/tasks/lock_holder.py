"""Locks whose holder can be requested to end.

The process that holds such a lock writes its pid and its start time into the lock's file (the start time, since pids
are reused). This content is not trusted: only a process that has the lock's file open and locked gets a signal.

The supervisor, which must stay small, imports this module, so nothing large may be imported here. Sources: flock(2),
pidfd_open(2), proc_pid_fdinfo(5).
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable

from waypoint.linux.storage import files
from waypoint.linux.tasks import pidfd, procfs

_LOOK_S = 0.01


def sign(lock_fd: int) -> None:
    """Write the caller's pid into the file of the lock that the caller holds, so that `take_over` can end the
    caller.
    """
    os.pwrite(lock_fd, f"{os.getpid()} {procfs.start_ticks(os.getpid())}\n".ljust(32).encode(), 0)


def signed_by(path: str) -> int:
    """Return the pid in the lock's file; if the lock is held, it is the holder's. 0 if the file is empty or missing."""
    return _signature(path)[0]


def is_held(path: str) -> bool:
    """Whether the process that has signed the lock's file runs and holds the lock. Does not take the lock."""
    return bool(holders([path]))


def holders(paths: Iterable[str]) -> list[int]:
    """The pids of the processes that have signed these locks' files and hold the locks. Does not take the locks."""
    found = []
    for path in paths:
        holder = _open_signer(path)
        if holder >= 0:
            os.close(holder)
            found.append(signed_by(path))
    return found


def _signature(path: str) -> tuple[int, int]:
    """Return the pid in the lock's file and the start time of that process in clock ticks. (0, 0) if the file is empty
    or missing.
    """
    with contextlib.suppress(FileNotFoundError, ValueError), open(path, "rb") as file:
        pid, ticks = map(int, file.read().split())
        return pid, ticks
    return 0, 0


def take_over(path: str, *, patience_s: float, kill_s: float = 0.0) -> int:
    """End the processes that hold the lock of `path`, acquire the lock (see `files.lock`), and return its descriptor.
    The lock's file is empty then, so `take_over` does not end the caller, unless the caller calls `sign`.

    Each process that holds the lock gets SIGTERM and, if `kill_s` is more than 0, SIGKILL after `patience_s` seconds.
    Raises TimeoutError, which names the holder, if the lock is still held after `patience_s` and `kill_s` seconds.
    """
    lock_fd = _take_within(path, signal.SIGTERM, patience_s)
    if lock_fd < 0 and kill_s > 0:
        lock_fd = _take_within(path, signal.SIGKILL, kill_s)
    if lock_fd < 0:
        waited = f"{patience_s:g} s after SIGTERM"
        waited += f" and {kill_s:g} s after SIGKILL" if kill_s > 0 else ""
        raise TimeoutError(errno.ETIMEDOUT, f"{_describe(path)} still holds the lock, {waited}", path)
    os.ftruncate(lock_fd, 0)
    return lock_fd


def _take_within(path: str, number: int, wait_s: float) -> int:
    """Send signal `number` to each holder of the lock until the lock can be acquired. Return its descriptor, or -1 if
    the lock is still held after `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    while True:
        with contextlib.ExitStack() as opened:
            holder = _open_signer(path)
            if holder >= 0:
                opened.callback(os.close, holder)
            # If the lock is still held now, after the pidfd was opened, the pidfd refers to the holder, and not to a
            # later process with the same pid.
            with contextlib.suppress(BlockingIOError):
                return files.lock(path, wait=False)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return -1
            if holder >= 0 and not pidfd.has_ended(holder):
                with contextlib.suppress(ProcessLookupError):
                    pidfd.send_signal(holder, number)
                pidfd.wait_ended(holder, left_s)
            else:  # the holder has not written its pid yet
                time.sleep(_LOOK_S)


def _open_signer(path: str) -> int:
    """Return a pidfd of the process whose pid is in the file, or -1 if that process does not hold the lock."""
    pid, ticks = _signature(path)
    if pid <= 0:
        return -1
    with contextlib.suppress(ProcessLookupError):
        fd = pidfd.open(pid)
        if procfs.start_ticks(pid) == ticks and _holds(pid, path):
            return fd
        os.close(fd)
    return -1


def _holds(pid: int, path: str) -> bool:
    """Return True if the process has an open file description that holds the flock(2) of the file `path`. The process
    may have inherited the description, so /proc/locks does not help: it shows only the process that acquired the lock.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):  # it has just ended
        file = os.stat(path)
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # the process has closed it
                opened = os.stat(f"/proc/{pid}/fd/{fd}")
                if (opened.st_dev, opened.st_ino) != (file.st_dev, file.st_ino):
                    continue
                with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as facts:
                    if any(line.startswith("lock:") and " FLOCK " in line for line in facts):
                        return True
    return False


def _describe(path: str) -> str:
    """Describe the process that holds the lock, for a message: its pid, its name and its state (see ps(1)), since a
    process in state D cannot be killed.
    """
    pid, ticks = _signature(path)
    with contextlib.suppress(ProcessLookupError):
        found = procfs.stat(pid)
        if found.start_ticks == ticks and _holds(pid, path):
            return f"process {pid} ({found.name}, state {found.state})"
    return "an unknown process"
