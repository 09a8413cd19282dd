"""Locks of files that a restore loses: those of fcntl(2) and lockf(3) on files that their owner has mapped, too.

A process loses all such locks on a file when it closes any descriptor of that file. CRIU takes them again first, then
opens each file that is mapped, maps it, and closes it (criu/pie/restorer.c). Databases do this: sqlite in WAL mode maps
its `-shm` file and locks it. Locks of flock(2) belong to a descriptor, and are not lost.
"""

import contextlib
import re
from collections.abc import Collection, Iterator

from waypoint.linux.tasks import mappings, procfs

_LOCK = re.compile(rb"^lock:\t\d+: POSIX ", re.MULTILINE)
_MOST_BYTES = 1 << 16  # of what the kernel tells of a descriptor


def lost(pids: Collection[int]) -> list[str]:
    """The locks of the processes that a restore loses, in the form `/srv/app.db-shm of python3 (pid 7)`, sorted; the
    pid as the process sees it. Processes that have ended are skipped.
    """
    found: set[str] = set()
    owners = procfs.lock_owners()
    for pid in pids if owners is None else owners.intersection(pids):
        with contextlib.suppress(OSError):
            found.update(f"{path} of {procfs.stat(pid).name} (pid {procfs.inner_pid(pid)})" for path in _lost_of(pid))
    return sorted(found)


def _lost_of(pid: int) -> Iterator[str]:
    """The paths of the files that the process has mapped, and has locked. Raises OSError."""
    mapped = {mapping.path for mapping in mappings.read_mappings(pid)}
    for fd, path in procfs.open_files(pid).items():
        if path.replace("\n", r"\012") in mapped and _LOCK.search(procfs.fdinfo(pid, fd, _MOST_BYTES)):
            yield path
