"""Groups of processes on a machine that gives a user no control groups. cgroups.py uses them for paths below FOLDER.

A group is a folder. Its file `roots` has the pid and the start time of each process that was put into the group; their
descendants belong to it, too. A session's pid 1 is such a process, and no process of a session outlives it. Freezing a
group stops its processes with SIGSTOP; the file `stopped` lists them, so that a later daemon can continue them, and
only them.

The keeper (egress/keeper.py) uses this module, so nothing heavy may be imported here.
"""

import contextlib
import errno
import os
import signal
import time

from waypoint.linux.storage import files
from waypoint.linux.tasks import pidfd, procfs

FOLDER = "process-groups"
_ROOTS, _STOPPED = "roots", "stopped"
_LARGE = 4096  # bytes of `roots` from which ended processes are left out of it
_LOOK_S = 0.002
_ENDED, _STANDING = frozenset("ZXx"), frozenset("TtZXx")
_TICKS = os.sysconf("SC_CLK_TCK")


def is_one(path: str) -> bool:
    """Whether the group at `path` is a folder of this module."""
    return f"/{FOLDER}" in path


def add(path: str, pid: int) -> None:
    """Put a process into the group. Raises FileNotFoundError if there is no such group, ProcessLookupError."""
    folder = files.lock_folder(path)
    try:
        name = f"{path}/{_ROOTS}"
        if os.path.exists(name) and os.path.getsize(name) > _LARGE:  # processes entered, and have ended since
            rows = [row for row in _listed(name) if procfs.is_same(*row)]
            content = "".join(f"{one} {start}\n" for one, start in rows)
            files.publish(name, content.encode(), durable=False)
        _note(path, _ROOTS, pid, procfs.start_ticks(pid))
    finally:
        os.close(folder)


def members(path: str) -> list[int]:
    """The processes of the group and of the groups below, parents first, without those that have ended."""
    found: dict[int, None] = {}
    for folder, _folders, names in os.walk(path):
        if _ROOTS in names:
            waiting = [pid for pid, start in _listed(f"{folder}/{_ROOTS}") if procfs.is_same(pid, start)]
            while waiting:
                pid = waiting.pop()
                if pid in found:
                    continue
                with contextlib.suppress(OSError, ValueError):  # it has just ended
                    if procfs.stat(pid).state not in _ENDED:
                        found[pid] = None
                    waiting += [child for tid in procfs.threads(pid) for child in procfs.children(pid, tid)]
    return list(found)


def _listed(path: str) -> list[tuple[int, int]]:
    try:
        with open(path) as file:
            rows = [line.split() for line in file]
    except FileNotFoundError:
        return []
    return [(int(row[0]), int(row[1])) for row in rows if len(row) == 2]


def freeze(path: str, timeout_s: float) -> None:
    """Stop all processes of the group, and return when they stand. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    asked: set[int] = set()
    while True:
        running = [(pid, facts) for pid, facts in _facts(path) if facts.state not in _STANDING]
        for pid, facts in running:
            if pid not in asked:
                _note(path, _STOPPED, pid, facts.start_ticks)  # first, so that no daemon forgets to continue it
                _signal(pid, facts.start_ticks, signal.SIGSTOP)
                asked.add(pid)
        if not running:
            open(f"{path}/{_STOPPED}", "a").close()
            return
        _check(path, deadline)
        time.sleep(_LOOK_S)


def thaw(path: str) -> None:
    """Continue the processes that `freeze` has stopped, children first: a shell must not find its job stopped."""
    for pid, start in reversed(_listed(f"{path}/{_STOPPED}")):
        _signal(pid, start, signal.SIGCONT)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}/{_STOPPED}")


def is_frozen(path: str) -> bool:
    return os.path.exists(f"{path}/{_STOPPED}")


def end(path: str, timeout_s: float) -> None:
    """Kill all processes of the group, wait until they have ended, and remove the group. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while found := _facts(path):
        for pid, facts in found:
            _signal(pid, facts.start_ticks, signal.SIGKILL)
        _wait_one(path, found[0][0], deadline)
    import shutil  # not for the keeper

    shutil.rmtree(path, ignore_errors=True)


def wait_empty(path: str, timeout_s: float) -> None:
    """Block until no process of the group runs. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while found := members(path):
        _wait_one(path, found[0], deadline)


def _wait_one(path: str, pid: int, deadline: float) -> None:
    """Wait for the end of process `pid`."""
    _check(path, deadline)
    with contextlib.suppress(ProcessLookupError):
        fd = pidfd.open(pid)
        try:
            pidfd.wait_ended(fd, max(0.0, deadline - time.monotonic()))
        finally:
            os.close(fd)


def _check(path: str, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(errno.ETIMEDOUT, "its processes have not stopped or ended in time", path)


def _signal(pid: int, start: int, number: int) -> None:
    """Send the signal to the process, if it still is the one that started at `start`."""
    with contextlib.suppress(ProcessLookupError):
        fd = pidfd.open(pid)
        try:
            if procfs.is_same(pid, start):
                pidfd.send_signal(fd, number)
        finally:
            os.close(fd)


def _facts(path: str) -> list[tuple[int, procfs.Stat]]:
    found = []
    for pid in members(path):
        with contextlib.suppress(ProcessLookupError):
            found.append((pid, procfs.stat(pid)))
    return found


def _note(path: str, name: str, pid: int, start: int) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(f"{path}/{name}", flags, 0o600), "w") as file:
        file.write(f"{pid} {start}\n")


def memory_bytes(path: str) -> int:
    """The memory of all processes of the group. What processes share is counted for each."""
    total = 0
    for pid in members(path):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as file:
            total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def cpu_usec(path: str) -> int:
    """The processor time that the processes of the group and their ended children have used."""
    total = 0
    for pid in members(path):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat") as file:
            total += sum(map(int, file.read().rpartition(")")[2].split()[11:15]))
    return total * 1_000_000 // _TICKS
