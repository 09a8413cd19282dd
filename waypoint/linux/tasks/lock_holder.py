"""Locks whose holder can be asked to end: the process that holds such a lock has written its pid into the lock's file,
with the time at which it started, as pids are used again. What stands in a file proves nothing: only a process that has
the lock's file open and locked is asked.

Part of the supervisor, which must stay small: nothing heavy may be imported here. Sources: flock(2), pidfd_open(2),
proc_pid_fdinfo(5).
"""

import contextlib
import errno
import os
import signal
import time

from waypoint.linux.storage import files
from waypoint.linux.tasks import pidfd, procfs

_LOOK_S = 0.01


def sign(lock_fd: int) -> None:
    """Write the caller's pid into the file of the lock that the caller holds: from now on it may be asked to end."""
    os.pwrite(lock_fd, f"{os.getpid()} {procfs.start_ticks(os.getpid())}\n".ljust(32).encode(), 0)


def signed_by(path: str) -> int:
    """The pid in the lock's file, which is the holder's if the lock is held; 0 if the file is empty or not there."""
    return _signature(path)[0]


def is_held(path: str) -> bool:
    """Whether the process that has signed the lock's file runs and holds the lock. Does not take the lock."""
    holder = _open_signer(path)
    if holder < 0:
        return False
    os.close(holder)
    return True


def _signature(path: str) -> tuple[int, int]:
    """The pid in the lock's file and the start time of that process in clock ticks; (0, 0) without them."""
    with contextlib.suppress(FileNotFoundError, ValueError), open(path, "rb") as file:
        pid, ticks = map(int, file.read().split())
        return pid, ticks
    return 0, 0


def take_over(path: str, *, patience_s: float, kill_s: float = 0.0) -> int:
    """Take the lock of `path` as `files.lock` does, and return its descriptor; who holds the lock is asked to end. The
    file is empty then: nobody asks the caller to end, unless the caller signs.

    Each process that holds the lock gets SIGTERM. After `patience_s` seconds, if `kill_s` is more than 0, SIGKILL.
    Raises TimeoutError, which says who holds the lock, if it is still held after `patience_s` and `kill_s` seconds; the
    signals have been sent.
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
    """Take the lock, sending signal `number` to each of its holders; -1 if it is still held after `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    while True:
        with contextlib.ExitStack() as opened:
            holder = _open_signer(path)
            if holder >= 0:
                opened.callback(os.close, holder)
            # If the lock is held now, after the pid was opened, the pid is the holder's, and not of a later process.
            with contextlib.suppress(BlockingIOError):
                return files.lock(path, wait=False)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return -1
            if holder >= 0 and not pidfd.has_ended(holder):
                with contextlib.suppress(ProcessLookupError):
                    pidfd.send_signal(holder, number)
                pidfd.wait_ended(holder, left_s)
            else:  # the holder has not signed yet
                time.sleep(_LOOK_S)


def _open_signer(path: str) -> int:
    """A pidfd of the process that has signed; -1 if there is none any more."""
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
    """Whether the process has an open file description by which it, or who has left it to it, holds the flock(2) of the
    file `path`. /proc/locks would tell only who took the lock, which may have been another process.
    """
    with contextlib.suppress(FileNotFoundError):
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
    """Who holds the lock and has signed, in words: its program, and its state as ps(1) has it, since one in state D
    cannot be killed.
    """
    pid, ticks = _signature(path)
    with contextlib.suppress(ProcessLookupError):
        found = procfs.stat(pid)
        if found.start_ticks == ticks and _holds(pid, path):
            return f"process {pid} ({found.name}, state {found.state})"
    return "a process that is not known"
