"""Taking file locks again in restored processes, where CRIU cannot do it.

Locks of fcntl(2) and lockf(3) on files that their owner has mapped are lost in a restore. For a session with bind
mounts, all locks are taken here instead of by CRIU, which would wait for those that other programs have.

A process loses all such locks on a file when it closes any descriptor of that file. CRIU takes the locks first, then
opens, maps and closes each mapped file (criu/pie/restorer.c). This affects databases: sqlite in WAL mode maps its
`-shm` file and locks it. Locks of flock(2) belong to a descriptor and are not lost.

A process can take such a lock only for itself. So the restored processes are stopped by ptrace before any of them runs,
and each owner is made to call fcntl again. This needs x86-64; on other machines captures report the lost locks as
degraded.

The list of locks comes from CRIU's images (criu/file-lock.c). Reading /proc/locks would stop all locking on the machine
for an RCU grace period, 10 ms and more (locks_start in fs/locks.c).
"""

import contextlib
import fcntl
import os
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from waypoint.linux.calls import machine
from waypoint.linux.tasks import mappings, procfs, ptrace
from waypoint.processes.criu.image_files import LOCKS, LOCKS_MAGIC, read_messages
from waypoint.processes.criu.messages import LOCK_ENTRY, decode

_OF_FCNTL, _OF_FLOCK, _OF_OFD = 1, 2, 4  # FL_POSIX, FL_FLOCK, FL_OFD in criu/include/file-lock.h
_FLOCK = struct.Struct("<hh4xqqi4x")  # struct flock: type, whence, start, len, pid
_FCNTL, _FLOCK_CALL = 72, 73  # the numbers of fcntl(2) and flock(2) on x86-64
_F_OFD_SETLK = 37


class Lock(NamedTuple):
    """A file lock. `kind`: a flag of CRIU. `pid`: its owner, as seen inside. `length`: in bytes; 0: to the end of the
    file.
    """

    kind: int
    pid: int
    fd: int
    type: int
    start: int
    length: int


def can_take() -> bool:
    return machine.architecture() == "x86_64"


def to_take(images_fd: int, *, all_kinds: bool = False) -> list[Lock]:
    """The locks in the images, for `take_again`; without `all_kinds` only those of fcntl(2). Raises OSError; ValueError
    if the image is malformed.
    """
    found = _read(images_fd) if can_take() else []
    return found if all_kinds else [lock for lock in found if lock.kind == _OF_FCNTL]


def lost(images_fd: int, pids: Collection[int]) -> list[str]:
    """The locks that a restore of the images loses for good, in the form `/srv/app.db-shm of python3 (pid 7)`, sorted.
    `pids`: the processes of the session, as the host sees them. Raises OSError; ValueError if the image is malformed.
    """
    if can_take():
        return []  # on this machine, lost locks are taken again
    found: set[str] = set()
    for pid, owned in _owners([lock for lock in _read(images_fd) if lock.kind == _OF_FCNTL], pids):
        with contextlib.suppress(OSError):
            found.update(_names(_mapped(pid, owned), procfs.stat(pid).name, owned))
    return sorted(found)


def take_again(locks: Collection[Lock], pids: Collection[int], *, mapped_only: bool) -> list[str]:
    """Have the restored processes `pids`, which are `stopped`, take their locks again, with `mapped_only` those on
    mapped files. No process waits for a lock that another has. Returns the locks that could not be taken, in the form
    of `lost`.
    """
    return sorted({name for pid, owned in _owners(locks, pids) for name in _take(pid, owned, mapped_only=mapped_only)})


def _take(pid: int, owned: list[Lock], *, mapped_only: bool) -> list[str]:
    """Have the process take its locks. Returns the locks that it could not take, which are all if ptrace fails."""
    files = _mapped(pid, owned) if mapped_only else procfs.open_files(pid)
    name = procfs.stat(pid).name
    left = list(reversed(owned)) if files else []
    refused = []
    with contextlib.suppress(OSError):
        code = ptrace.code_place(pid) if files else 0
        while left:
            if not _lock(pid, code, left[-1]):
                refused.append(left[-1])
            left.pop()
    return _names(files, name, [*refused, *left])


def _lock(pid: int, code: int, lock: Lock) -> bool:
    """Have the stopped process take the lock, unless it would have to wait. `code`: `ptrace.code_place`."""
    data = _FLOCK.pack(lock.type, os.SEEK_SET, lock.start, lock.length, 0)
    if lock.kind == _OF_FLOCK:
        how = fcntl.LOCK_SH if lock.type == fcntl.F_RDLCK else fcntl.LOCK_EX
        return ptrace.system_call(pid, code, _FLOCK_CALL, lock.fd, how | fcntl.LOCK_NB, 0) == 0
    command = fcntl.F_SETLK if lock.kind == _OF_FCNTL else _F_OFD_SETLK
    return ptrace.system_call(pid, code, _FCNTL, lock.fd, command, None, data=data) == 0


def _owners(locks: Collection[Lock], pids: Collection[int]) -> Iterator[tuple[int, list[Lock]]]:
    """The processes that own some of the locks, each with its locks."""
    owned = defaultdict[int, list[Lock]](list)
    for lock in locks:
        owned[lock.pid].append(lock)
    for pid in pids if owned else ():
        with contextlib.suppress(OSError):
            inside = procfs.inner_pid(pid)
            if inside in owned:
                yield pid, owned[inside]


def _names(mapped: dict[int, str], name: str, owned: list[Lock]) -> list[str]:
    return [f"{mapped[lock.fd]} of {name} (pid {lock.pid})" for lock in owned if lock.fd in mapped]


def _read(images_fd: int) -> list[Lock]:
    entries = [decode(LOCK_ENTRY, message) for message in read_messages(images_fd, LOCKS, LOCKS_MAGIC)]
    return [
        Lock(*(_number(entry.get(name, 0)) for name in ("flag", "pid", "fd", "type", "start", "len")))
        for entry in entries
        if entry["flag"] in (_OF_FCNTL, _OF_FLOCK, _OF_OFD)
    ]


def _mapped(pid: int, owned: list[Lock]) -> dict[int, str]:
    """The paths of the locked files that the process has also mapped, by descriptor. Raises OSError."""
    fds = {lock.fd for lock in owned}
    mapped = {mapping.path for mapping in mappings.read_mappings(pid)}
    return {
        fd: path for fd, path in procfs.open_files(pid).items() if fd in fds and path.replace("\n", r"\012") in mapped
    }


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"a lock has {value!r} in place of a number")
    return value
