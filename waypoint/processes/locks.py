"""Locks of files that a restore loses: those of fcntl(2) and lockf(3) on files that their owner has mapped, too.

A process loses all such locks on a file when it closes any descriptor of that file. CRIU takes them again first, then
opens each file that is mapped, maps it, and closes it (criu/pie/restorer.c). Databases do this: sqlite in WAL mode maps
its `-shm` file and locks it. Locks of flock(2) belong to a descriptor, and are not lost.

CRIU's images tell who has locks (criu/file-lock.c). The kernel's own list, /proc/locks, would stop all locking on the
machine for as long as it takes to make it: 10 ms and more, an RCU grace period (locks_start in fs/locks.c).
"""

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterator

from waypoint.linux.tasks import mappings, procfs
from waypoint.processes.criu.lists import LOCKS, LOCKS_MAGIC, read_messages
from waypoint.processes.criu.messages import LOCK_ENTRY, decode

_OF_FCNTL = 1  # FL_POSIX in linux/fs.h


def lost(images_fd: int, pids: Collection[int]) -> list[str]:
    """The locks of the processes that a restore of the images loses, in the form `/srv/app.db-shm of python3 (pid 7)`,
    sorted; the pid as the process sees it. Processes that have ended are skipped. Costs next to nothing if there are no
    locks. Raises OSError; ValueError if the image is malformed.
    """
    locked = defaultdict[object, set[object]](set)  # the descriptors, by the pids inside
    for message in read_messages(images_fd, LOCKS, LOCKS_MAGIC):
        entry = decode(LOCK_ENTRY, message)
        if entry["flag"] == _OF_FCNTL:
            locked[entry["pid"]].add(entry["fd"])
    found: set[str] = set()
    for pid in pids if locked else ():
        with contextlib.suppress(OSError):
            inside = procfs.inner_pid(pid)
            if inside in locked:
                found.update(
                    f"{path} of {procfs.stat(pid).name} (pid {inside})" for path in _mapped(pid, locked[inside])
                )
    return sorted(found)


def _mapped(pid: int, fds: Collection[object]) -> Iterator[str]:
    """The paths of those of the process's open files `fds` that it has mapped, too. Raises OSError."""
    mapped = {mapping.path for mapping in mappings.read_mappings(pid)}
    for fd, path in procfs.open_files(pid).items():
        if fd in fds and path.replace("\n", r"\012") in mapped:
            yield path
