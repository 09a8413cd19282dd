"""Freezing and ending a session that has no cgroup.

It is frozen by a program that holds all of its tasks by ptrace (holder.py), and that lets them go when its stdin is
closed, so also when the daemon dies.
"""

import contextlib
import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

from waypoint.linux.tasks import kin, pidfd, procfs

HOLD_S = 5.0

_HOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "holder.py")

_holders: dict[str, "subprocess.Popen[bytes]"] = {}
_turn = threading.Lock()


def freeze(path: str) -> float:
    """Hold every task of the group; return when all stand still: the time.monotonic() at which that began. Raises
    PermissionError, which says so in words, if somebody outside of the group traces one; TimeoutError after HOLD_S,
    OSError. After a failure, all go on.
    """
    with _turn:
        if path in _holders:
            return time.monotonic()
        holder = _holders[path] = subprocess.Popen(
            [sys.executable, "-I", "-S", _HOLDER, str(kin.first_of(path) or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        return _wait_held(holder)
    except BaseException:
        thaw(path)
        raise


def _wait_held(holder: "subprocess.Popen[bytes]") -> float:
    assert holder.stdout is not None
    said = select.poll()
    said.register(holder.stdout, select.POLLIN)
    line = os.read(holder.stdout.fileno(), 1024) if said.poll(1000 * HOLD_S) else b""
    if not line.endswith(b"\n"):
        raise TimeoutError(errno.ETIMEDOUT, f"not all of its processes stand still after {HOLD_S:g} s")
    try:
        return float(line)
    except ValueError:
        raise PermissionError(errno.EPERM, line.decode(errors="backslashreplace").rstrip()) from None


def is_frozen(path: str) -> bool:
    return path in _holders


def thaw(path: str) -> None:
    """Let the group's tasks run again. No error if they do."""
    with _turn:
        holder = _holders.pop(path, None)
    if holder is not None:
        holder.kill()
        holder.communicate()


def end(path: str, timeout_s: float, flush_s: float) -> None:
    """Kill every process of the group, and of the groups in its folder, wait until none is left, and remove the folder.
    No error if it is gone. Raises TimeoutError after `timeout_s`, after `flush_s` more if it is on its way out.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(path):
            if os.path.isdir(f"{path}/{name}"):
                end(f"{path}/{name}", timeout_s, flush_s)
    first = kin.first_of(path)
    with contextlib.suppress(ProcessLookupError):
        if first is not None:
            fd = pidfd.open(first)
            try:
                _kill(path, fd)
                thaw(path)  # only now: whoever is held is dead when let go; a process that ends waits for its tracer
                is_ended = pidfd.wait_ended(fd, timeout_s)
                if not is_ended and procfs.is_exiting(first):
                    is_ended = pidfd.wait_ended(fd, flush_s)
                if not is_ended:
                    raise TimeoutError(errno.ETIMEDOUT, f"pid {first} has not ended after {timeout_s:g} s", path)
            finally:
                os.close(fd)
    thaw(path)
    shutil.rmtree(path, ignore_errors=True)


def _kill(path: str, first: int) -> None:
    for pid in kin.members(path)[1:]:  # those that are held would run on for a moment otherwise
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    pidfd.send_signal(first, signal.SIGKILL)
