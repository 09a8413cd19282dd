"""Locks of files that CRIU's restore loses, and taking them again: those of fcntl(2) and lockf(3) on files that their
owner has mapped, too.

A process loses all such locks on a file when it closes any descriptor of that file. CRIU takes them again first, then
opens each file that is mapped, maps it, and closes it (criu/pie/restorer.c). Databases do this: sqlite in WAL mode maps
its `-shm` file and locks it. Locks of flock(2) belong to a descriptor, and are not lost.

Only its owner can take such a lock. So the restored processes are held before any of them runs, and each owner is made
to take its locks again (ptrace). This is of x86-64; elsewhere captures say what copies lose.

CRIU's images tell who has locks (criu/file-lock.c). The kernel's own list, /proc/locks, would stop all locking on the
machine for as long as it takes to make it: 10 ms and more, an RCU grace period (locks_start in fs/locks.c).
"""

import contextlib
import fcntl
import os
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from waypoint.linux.calls import machine
from waypoint.linux.tasks import cgroups, mappings, procfs, ptrace
from waypoint.processes.criu.lists import LOCKS, LOCKS_MAGIC, read_messages
from waypoint.processes.criu.messages import LOCK_ENTRY, decode

_OF_FCNTL = 1  # FL_POSIX in linux/fs.h
_FLOCK = struct.Struct("<hh4xqqi4x")  # struct flock: type, whence, start, len, pid
_FCNTL = 72  # the number of fcntl(2) on x86-64


class Lock(NamedTuple):
    """A lock of fcntl(2). `pid`: of its owner, as the owner sees it. `length`: in bytes; 0: to the end of the file."""

    pid: int
    fd: int
    type: int
    start: int
    length: int


def to_take(images_fd: int) -> list[Lock]:
    """What `take_again` is to be given: locks that the images have. Raises OSError; ValueError if the image is
    malformed.
    """
    return _read(images_fd) if machine.architecture() == "x86_64" else []


def lost(images_fd: int, pids: Collection[int]) -> list[str]:
    """The locks of the processes that a restore of the images loses for good, in the form
    `/srv/app.db-shm of python3 (pid 7)`, sorted; the pid as the process sees it. Processes that have ended are skipped.
    Costs next to nothing if there are no locks. Raises OSError; ValueError if the image is malformed.
    """
    if machine.architecture() == "x86_64":
        return []  # they are taken again
    found: set[str] = set()
    for pid, owned in _owners(_read(images_fd), pids):
        with contextlib.suppress(OSError):
            found.update(_names(_mapped(pid, owned), procfs.stat(pid).name, owned))
    return sorted(found)


def take_again(locks: Collection[Lock], cgroup: str) -> list[str]:
    """Have the restored processes of the group take their locks on mapped files again, and let the group run.

    The group is frozen, or is freezing, and no process of it has run since the restore. Returns, as `lost`, the locks
    that could not be taken: a process that cannot be held (another program traces it) goes on without its own.
    """
    pids = cgroups.members(cgroup)
    stopped: list[int] = []
    try:
        for pid in pids:
            with contextlib.suppress(OSError):  # it has ended, or `_take` will tell what it has lost
                _stop(pid, stopped)
        cgroups.thaw(cgroup)  # they stand still all the same
        return sorted({name for pid, owned in _owners(locks, pids) for name in _take(pid, owned)})
    finally:
        for tid in stopped:
            with contextlib.suppress(OSError):  # killed meanwhile
                ptrace.detach(tid)
        cgroups.thaw(cgroup)


def _stop(pid: int, stopped: list[int]) -> None:
    """Hold all threads of the process, and add those that are held to `stopped`. Raises OSError."""
    for tid in procfs.threads(pid):
        ptrace.seize(tid, unfiltered=True)
        stopped.append(tid)
        ptrace.interrupt(tid)
        ptrace.wait(tid)


def _take(pid: int, owned: list[Lock]) -> list[str]:
    """Returns what could not be taken, also if the process is one that can be made to take nothing."""
    try:
        mapped, name = _mapped(pid, owned), procfs.stat(pid).name
    except OSError:
        return []  # it has ended, with all that it had
    left = list(reversed(owned)) if mapped else []
    refused = []
    with contextlib.suppress(OSError):
        code = ptrace.code_place(pid) if mapped else 0
        while left:
            lock = left[-1]
            data = _FLOCK.pack(lock.type, os.SEEK_SET, lock.start, lock.length, 0)
            if ptrace.system_call(pid, code, _FCNTL, lock.fd, fcntl.F_SETLK, data=data) != 0:
                refused.append(lock)
            left.pop()
    return _names(mapped, name, [*refused, *left])


def _owners(locks: Collection[Lock], pids: Collection[int]) -> Iterator[tuple[int, list[Lock]]]:
    """Those of the processes that have some of the locks. Those that have ended are skipped."""
    owned = defaultdict[int, list[Lock]](list)
    for lock in locks:
        owned[lock.pid].append(lock)
    for pid in pids if owned else ():
        with contextlib.suppress(OSError):
            inside = procfs.session_pid(pid)
            if inside in owned:
                yield pid, owned[inside]


def _names(mapped: dict[int, str], name: str, owned: list[Lock]) -> list[str]:
    return [f"{mapped[lock.fd]} of {name} (pid {lock.pid})" for lock in owned if lock.fd in mapped]


def _read(images_fd: int) -> list[Lock]:
    """All locks of fcntl(2)."""
    entries = [decode(LOCK_ENTRY, message) for message in read_messages(images_fd, LOCKS, LOCKS_MAGIC)]
    return [
        Lock(*(_number(entry.get(name, 0)) for name in ("pid", "fd", "type", "start", "len")))
        for entry in entries
        if entry["flag"] == _OF_FCNTL
    ]


def _mapped(pid: int, owned: list[Lock]) -> dict[int, str]:
    """The paths of those files with the locks that the process has mapped, too, by descriptor. Raises OSError."""
    fds = {lock.fd for lock in owned}
    mapped = {mapping.path for mapping in mappings.read_mappings(pid)}
    return {
        fd: path for fd, path in procfs.open_files(pid).items() if fd in fds and path.replace("\n", r"\012") in mapped
    }


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"a lock has {value!r} in place of a number")
    return value
