"""Folders that processes hold although their names were removed: as working directory, as root or as an open file; and
how much there is in files of that kind.

A removed folder of an overlay's lower layer cannot be told from a folder with a name by its attributes: it still has
links, those of the layer.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.linux.calls import powers
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import mount_id
from waypoint.linux.tasks import procfs
from waypoint.model.late_pattern import late_pattern

_MARK = " (deleted)"  # proc_pid_fd(5)
_MEMORY = ("/memfd:", "/dev/zero", "/SYSV")  # memfds, and memory that processes share
_REMOVED_AND_MAPPED = late_pattern(rb"^([0-9a-f]+)-([0-9a-f]+) [^/\n]*(/.* \(deleted\))$", re.MULTILINE)
"""In proc_pid_maps(5), of which a process may have 65,530 lines: so no line of others is taken apart."""
_BLOCK_BYTES = 512  # of st_blocks (stat(3type))
_SUFFIX_BYTES = 8
_SUFFIX = late_pattern(rb"\.waypoint-[0-9a-f]{%d}$" % (2 * _SUFFIX_BYTES))
_LONGEST_NAME = 200  # bytes of a file name (at most 255) that are kept before the suffix


class RemovedFolder(NamedTuple):
    """`mount_id`: of the mount on which the processes see the folder. `path`: the folder's last name in the nearest
    folder above that is still there, as seen from the root of the processes' mount namespace. `mode` is st_mode.
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
        """What tells the folder from all others."""
        return self.mount_id, self.inode


def find(pids: Iterable[int], root: int) -> list[RemovedFolder]:
    """The removed folders that the processes hold, each once, sorted. Folders of /proc, which belong to processes that
    have ended, are left out.

    `root`: a descriptor of the root of the processes' mount namespace. Processes that have ended are skipped. Costs one
    readlink(2) for each open file.
    """
    found: set[RemovedFolder] = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for link, path in _links(pid):
                if path.startswith("/") and path.endswith(_MARK) and not path.startswith("/proc/"):
                    found.update(_folder_at(link, path, root))
    return sorted(found)


def file_bytes(pids: Iterable[int], most: int) -> int:
    """Bytes of the files without a name that the processes have open or mapped, each file once, without holes: of
    shared memory, and of removed files that have no more than `most`. Processes that have ended, or hide this from the
    caller, are skipped. Costs as `find`, the list of all mappings, and one stat(2) for each such file.
    """
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            for link, path in (*_open(pid), *_mapped(pid)):
                if path.startswith("/") and path.endswith(_MARK):
                    with contextlib.suppress(FileNotFoundError, PermissionError):  # closed meanwhile; without rights
                        file = os.stat(link)
                        size = file.st_blocks * _BLOCK_BYTES
                        is_kept = size <= most or path.startswith(_MEMORY)
                        if is_kept and file.st_nlink == 0 and stat.S_ISREG(file.st_mode):
                            found[file.st_dev, file.st_ino] = size
    return sum(found.values())


def open_files(pids: Iterable[int]) -> set[tuple[int, str]]:
    """The files that the processes have open though their names were removed: the process and the last path of each.
    Memory is none of them. Processes that have ended, or hide this from the caller, are skipped. Costs as `find`.
    """
    found: set[tuple[int, str]] = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            paths = procfs.open_files(pid).values()
            gone = (path for path in paths if path.startswith("/") and path.endswith(_MARK))
            found.update((pid, path.removesuffix(_MARK)) for path in gone if not path.startswith(_MEMORY))
    return found


def _open(pid: int) -> Iterator[tuple[str, str]]:
    for number, path in procfs.open_files(pid).items():
        yield f"/proc/{pid}/fd/{number}", path


def _mapped(pid: int) -> Iterator[tuple[str, str]]:
    if powers.is_machines():  # else the kernel shows nobody these files (proc_pid_map_files(5))
        for one in _REMOVED_AND_MAPPED.finditer(b"\n".join(procfs.lines(pid, "maps"))):
            yield f"/proc/{pid}/map_files/{int(one[1], 16):x}-{int(one[2], 16):x}", os.fsdecode(one[3])


def _links(pid: int) -> Iterator[tuple[str, str]]:
    """The paths of the process's links in /proc that may lead to folders, and where they lead."""
    yield from _open(pid)
    for name in ("cwd", "root"):
        link = f"/proc/{pid}/{name}"
        with contextlib.suppress(FileNotFoundError):  # the process has ended
            yield link, os.readlink(link)


def _folder_at(link: str, path: str, root: int) -> Iterator[RemovedFolder]:
    """The folder to which `link` leads, unless that is another kind of file, or has its name still."""
    try:
        fd = os.open(link, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):  # closed meanwhile, or no folder
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
    """True if the folder `found` has the name `path`, which then ends in the mark by its own choice."""
    try:
        fd = beneath.open_beneath(root, path, os.O_PATH)
    except OSError:
        return False
    try:
        return os.path.samestat(os.fstat(fd), found)
    finally:
        os.close(fd)


def _in_nearest(path: str, root: int) -> str:
    """`path` without the folders of it that are gone, or are links or files now."""
    folder, name = os.path.split(path)
    while folder != "/":
        with contextlib.suppress(OSError):
            os.close(beneath.open_beneath(root, folder, os.O_PATH | os.O_DIRECTORY))
            break
        folder = os.path.dirname(folder)
    return os.path.join(folder, name)


def with_free_names(folders: Iterable[RemovedFolder], root: int) -> list[RemovedFolder]:
    """The folders, with another name where the path is in use now, by a file or by another of the folders."""
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
    """`path` with a random suffix to its last name, in place of such a suffix if the name has one."""
    folder, name = os.path.split(os.fsencode(path))
    suffix = b".waypoint-" + os.urandom(_SUFFIX_BYTES).hex().encode()
    return os.fsdecode(os.path.join(folder, _SUFFIX.sub(b"", name)[:_LONGEST_NAME] + suffix))
