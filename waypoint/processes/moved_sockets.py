"""Finding Unix sockets whose file was renamed or linked to another name since they were bound.

Servers bind a socket to a temporary name and rename it, so that the final name appears only when they listen. CRIU
would bind the socket to the first name (criu/images.py).
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Collection, Iterator

from waypoint.linux.net import sockets
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import path_of
from waypoint.linux.tasks import pidfd
from waypoint.processes.ports import open_sockets

_LONGEST = 107  # bytes of a name to which a socket can be bound
_MOST_LISTED = 10_000  # entries of a folder in which a name is looked for


def find(pids: Collection[int], root: int) -> dict[int, str]:
    """The present paths of the renamed sockets of the processes, by the sockets' inodes; without those whose file was
    removed. `root`: a descriptor of the session's root, from which the paths start.

    The processes must be frozen. Opens the file of each bound socket; if a socket was bound to a relative path, looks
    at each descriptor of the processes, because only its owner knows the folder.
    """
    found: dict[int, str] = {}
    missing: dict[int, str] = {}
    for pid in list(pids)[:1]:
        bound = sockets.bound_names(pid).items()
        missing = {inode: path for inode, path in bound if not (path.startswith("/") and _is_socket(path, root))}
        if missing:
            for inode, owner, number in open_sockets(pids):
                if inode in missing and inode not in found:
                    found.update(_present(inode, owner, number, root))
    return {inode: path for inode, path in found.items() if not _is_same(path, missing[inode])}


def _is_same(path: str, bound: str) -> bool:
    """Whether `bound` is a relative name of the file `path`."""
    return not bound.startswith("/") and os.path.basename(path) == os.path.basename(bound)


def _is_socket(path: str, root: int) -> bool:
    try:
        with beneath.opened(root, path, os.O_PATH | os.O_NOFOLLOW) as fd:
            return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def _present(inode: int, pid: int, number: int, root: int) -> Iterator[tuple[int, str]]:
    """Yield the socket's inode and the present path of its file, if the file still has a path."""
    with contextlib.ExitStack() as held, contextlib.suppress(OSError):  # closed by now, or too long a path
        taken = pidfd.take(pid, number)
        held.callback(os.close, taken)
        file = sockets.open_file_of(taken)
        held.callback(os.close, file)
        path = path_of(file)
        if not _is_socket(path, root):
            path = _linked(path, os.fstat(file), root)
        if path and len(os.fsencode(path)) <= _LONGEST:
            yield inode, path


def _linked(path: str, file: os.stat_result, root: int) -> str:
    """Another name of the file in the folder that `path` was in; "" if it has none there. Raises OSError."""
    folder = os.path.dirname(path)
    with beneath.opened(root, folder, os.O_RDONLY | os.O_DIRECTORY) as fd, os.scandir(fd) as entries:
        for entry in itertools.islice(entries, _MOST_LISTED):
            found = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
            if os.path.samestat(found, file):
                return os.path.join(folder, entry.name)
    return ""
