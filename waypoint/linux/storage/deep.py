"""Walking and removing folders of any depth whose content somebody else controls.

Python's own functions recurse and hold a descriptor for each level, and the kernel takes no path of 4096 bytes. Here
one descriptor goes down by names, without following a link, and up by `..`.
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
    """A folder: a descriptor, valid until the next visit, the names of the folders in it, and all other names."""

    fd: int
    folders: list[str]
    others: list[str]


class _Above(NamedTuple):
    """A folder above the present one: its facts, and its subfolders that are still to be visited."""

    visit: Visit
    facts: os.stat_result
    left: list[str]


def walk(folder_fd: int, name: str) -> Iterator[Visit]:
    """Visit the folder `name` in the folder `folder_fd` and all folders below it, each after its subfolders. Nobody
    else may write there: raises OSError ESTALE if a folder was moved meanwhile.
    """
    above: list[_Above] = []
    visit, left = _enter(folder_fd, name)
    try:
        while True:
            if left:
                below = left.pop()
                above.append(_Above(visit, os.fstat(visit.fd), left))
                entered, left = _enter(visit.fd, below)
                os.close(visit.fd)
                visit = entered
                continue
            yield visit
            if not above:
                return
            up = above.pop()
            fd = os.open("..", _READ, dir_fd=visit.fd)
            os.close(visit.fd)
            visit, left = up.visit._replace(fd=fd), up.left
            if not os.path.samestat(os.fstat(fd), up.facts):
                raise OSError(errno.ESTALE, "somebody else has moved a folder that was being read")
    finally:
        os.close(visit.fd)


def _enter(folder_fd: int, name: str) -> tuple[Visit, list[str]]:
    """The visit of the folder `name` in `folder_fd`, and a list of its subfolders that the caller may change."""
    fd = beneath.open_beneath(folder_fd, name, _READ)
    try:
        visit = Visit(fd, [], [])
        with os.scandir(fd) as found:
            for entry in found:
                (visit.folders if entry.is_dir(follow_symlinks=False) else visit.others).append(entry.name)
    except BaseException:
        os.close(fd)
        raise
    return visit, visit.folders.copy()


def remove(folder_fd: int, name: str) -> None:
    """Remove the file or folder `name`, with its content, from `folder_fd`. Raises FileNotFoundError, ESTALE as
    `walk`.
    """
    try:
        os.unlink(name, dir_fd=folder_fd)
    except (IsADirectoryError, PermissionError):  # an immutable folder raises the second, too
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
    """Give an OSError about a name in the folder the whole path, unless that is too long."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            error.filename = f"{path_of(fd)}/{error.filename}"
        raise


def remove_path(path: StrPath) -> None:
    """Remove the file or folder at `path`, with its content. No error if it is missing.

    No other user may be able to change the folders of `path`.
    """
    with contextlib.suppress(FileNotFoundError):
        above, name = os.path.split(os.fspath(path))
        with open_folder(above or ".") as folder:
            remove(folder, name)
