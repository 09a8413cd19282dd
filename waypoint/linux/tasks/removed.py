"""Finds removed folders that processes still use, as working directory, as root or as an open file.

The attributes of a folder in an overlay's lower layer do not show that it was removed: its link count is that of the
layer.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import mount_id
from waypoint.linux.tasks import procfs

_MARK = " (deleted)"  # proc_pid_fd(5)
_SUFFIX_BYTES = 8
_SUFFIX = re.compile(rb"\.waypoint-[0-9a-f]{%d}$" % (2 * _SUFFIX_BYTES))
_LONGEST_NAME = 200  # how many bytes of a name are kept before the suffix: names have at most 255


class RemovedFolder(NamedTuple):
    """A removed folder. `mount_id`: the id of the mount on which the processes see the folder. `path`: the folder's
    last name in its nearest parent that still exists, as seen from the root of the processes' mount namespace. `mode`
    is st_mode.
    """

    mount_id: int
    inode: int
    path: str
    mode: int
    uid: int
    gid: int
    accessed_ns: int
    modified_ns: int

    @property
    def key(self) -> tuple[int, int]:
        """The identity of the folder: two RemovedFolder with the same key are the same folder."""
        return self.mount_id, self.inode


def find(pids: Iterable[int], root: int) -> list[RemovedFolder]:
    """Return the removed folders that the processes use, sorted and without duplicates. Skip folders in /proc, which
    disappear when their process ends, and processes that have ended.

    `root`: a descriptor of the root of the processes' mount namespace. Calls readlink(2) for each open file.
    """
    found: set[RemovedFolder] = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for link, path in _links(pid):
                if path.startswith("/") and path.endswith(_MARK) and not path.startswith("/proc/"):
                    found.update(_folder_at(link, path, root))
    return sorted(found)


def _links(pid: int) -> Iterator[tuple[str, str]]:
    """Yield each link of the process in /proc that may point to a folder, with the path that the link contains."""
    for number, path in procfs.open_files(pid).items():
        yield f"/proc/{pid}/fd/{number}", path
    for name in ("cwd", "root"):
        link = f"/proc/{pid}/{name}"
        with contextlib.suppress(FileNotFoundError):  # the process has ended
            yield link, procfs.read_link(link)


def _folder_at(link: str, path: str, root: int) -> Iterator[RemovedFolder]:
    """Yield the folder to which `link` points, unless it is not a folder, or was not removed."""
    try:
        fd = os.open(link, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):  # closed by the process, or not a folder
        return
    try:
        found = os.fstat(fd)
        if found.st_nlink == 0 or not _is_at(path, found, root):
            yield RemovedFolder(
                mount_id=mount_id(fd),
                inode=found.st_ino,
                path=_in_nearest(path.removesuffix(_MARK), root),
                mode=found.st_mode,
                uid=found.st_uid,
                gid=found.st_gid,
                accessed_ns=found.st_atime_ns,
                modified_ns=found.st_mtime_ns,
            )
    finally:
        os.close(fd)


def _is_at(path: str, found: os.stat_result, root: int) -> bool:
    """True if the folder `found` still exists at `path`: then its real name ends in " (deleted)"."""
    try:
        fd = beneath.open_beneath(root, path, os.O_PATH)
    except OSError:
        return False
    try:
        return os.path.samestat(os.fstat(fd), found)
    finally:
        os.close(fd)


def _in_nearest(path: str, root: int) -> str:
    """Return `path` without those parent folders that no longer exist, or are links or files now."""
    folder, name = os.path.split(path)
    while folder != "/":
        with contextlib.suppress(OSError):
            os.close(beneath.open_beneath(root, folder, os.O_PATH | os.O_DIRECTORY))
            break
        folder = os.path.dirname(folder)
    return os.path.join(folder, name)


def with_free_names(folders: Iterable[RemovedFolder], root: int) -> list[RemovedFolder]:
    """Return the folders, each with an unused name if its path is now used by a file or by another of the folders."""
    named: dict[str, RemovedFolder] = {}
    for folder in folders:
        path = _in_nearest(folder.path, root)
        if path in named or _is_in_use(path, root):
            path = unused_name(path)
        named[path] = folder._replace(path=path)
    return list(named.values())


def _is_in_use(path: str, root: int) -> bool:
    try:
        os.close(beneath.open_beneath(root, path, os.O_PATH))
    except FileNotFoundError:
        return False
    except OSError:  # a symbolic link
        return True
    return True


def unused_name(path: str) -> str:
    """Return `path` with a random suffix after its last name. The suffix replaces an earlier suffix of this kind."""
    folder, name = os.path.split(os.fsencode(path))
    suffix = b".waypoint-" + os.urandom(_SUFFIX_BYTES).hex().encode()
    return os.fsdecode(os.path.join(folder, _SUFFIX.sub(b"", name)[:_LONGEST_NAME] + suffix))
