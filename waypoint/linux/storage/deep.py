"""Going through folders that somebody else may have made, and removing them, however deep they are.

Python's own functions call themselves for each level, and hold a descriptor for each; the kernel takes no path of 4096
bytes. Here one descriptor goes down by names, without following a link, and up by `..`.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.calls.paths import StrPath
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder, path_of

_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Visit(NamedTuple):
    """A folder: a descriptor, the names of the folders and of all else in it, and its path, name by name, from the
    folder in which the walk began. Descriptor and path are valid until the next visit.
    """

    fd: int
    folders: list[str]
    others: list[str]
    path: list[str]


class _Above(NamedTuple):
    """A folder on the way back: which one it is, and those of its folders that are still to be visited."""

    visit: Visit
    facts: os.stat_result
    left: list[str]


def walk(folder_fd: int, name: str) -> Iterator[Visit]:
    """Visit the folder `name` in the folder `folder_fd` and all folders below it, each after those that are in it.
    Nobody else may write there: raises OSError ESTALE if a folder was moved meanwhile, and other OSErrors.
    """
    above: list[_Above] = []
    path: list[str] = []
    visit, left = _enter(folder_fd, name, path)
    try:
        while True:
            if left:
                below = left.pop()
                above.append(_Above(visit, os.fstat(visit.fd), left))
                path.append(below)
                entered, left = _enter(visit.fd, below, path)
                os.close(visit.fd)
                visit = entered
                continue
            yield visit
            if not above:
                return
            up = above.pop()
            path.pop()
            fd = os.open("..", _READ, dir_fd=visit.fd)
            os.close(visit.fd)
            visit, left = up.visit._replace(fd=fd), up.left
            if not os.path.samestat(os.fstat(fd), up.facts):
                raise OSError(errno.ESTALE, "somebody else has moved a folder that was being read")
    finally:
        os.close(visit.fd)


def _enter(folder_fd: int, name: str, path: list[str]) -> tuple[Visit, list[str]]:
    """The visit of the folder `name` in `folder_fd`, and a list of the folders in it for the caller to use up."""
    fd = _open(folder_fd, name)
    try:
        visit = Visit(fd, [], [], path)
        with os.scandir(fd) as found:
            for entry in found:
                (visit.folders if entry.is_dir(follow_symlinks=False) else visit.others).append(entry.name)
    except BaseException:
        os.close(fd)
        raise
    return visit, visit.folders.copy()


def _open(folder_fd: int, name: str) -> int:
    """Open the folder. Its owner, who may not read what overlayfs leaves of its own, may from now on."""
    try:
        return beneath.open_beneath(folder_fd, name, _READ)
    except PermissionError:
        with beneath.opened(folder_fd, name) as fd:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise
            os.chmod(beneath.name_of(fd), 0o700)
        return beneath.open_beneath(folder_fd, name, _READ)


def remove(folder_fd: int, name: str) -> None:
    """Remove `name` from the folder `folder_fd`, with all in it if it is a folder. Raises OSError: FileNotFoundError if
    it is missing, ESTALE as in `walk`.
    """
    try:
        os.unlink(name, dir_fd=folder_fd)
    except (IsADirectoryError, PermissionError):  # the second also of an immutable folder
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
            raise
    else:
        return
    for visit in walk(folder_fd, name):
        with _telling_where(visit.fd):
            for other in visit.others:
                os.unlink(other, dir_fd=visit.fd)
            for folder in visit.folders:
                os.rmdir(folder, dir_fd=visit.fd)
    os.rmdir(name, dir_fd=folder_fd)


@contextlib.contextmanager
def _telling_where(fd: int) -> Iterator[None]:
    """An OSError about a name in the folder gets the whole path, unless that is too long."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            error.filename = f"{path_of(fd)}/{error.filename}"
        raise


def remove_path(path: StrPath) -> None:
    """As `remove`, of the last name of `path`, whose other parts nobody else controls. No error if it is missing."""
    with contextlib.suppress(FileNotFoundError):
        above, name = os.path.split(os.fspath(path))
        with open_folder(above or ".") as folder:
            remove(folder, name)
