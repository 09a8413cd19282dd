"""Extracting a folder: from a ROOT object to a folder on disk with the same content.

Whatever the ROOT says, nothing outside of the folder is written: each name is made in an open folder that nobody else
may change, no link is followed, and entries.py accepts no name that leads elsewhere. Devices are refused, except
whiteouts.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.model.errors import StoreDamaged, as_text
from waypoint.store import entries, trees
from waypoint.store.entries import TreeEntry
from waypoint.store.filling import Filling
from waypoint.store.manifest import ANOTHER
from waypoint.store.store import Reader

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BAD_LINK = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EPERM, errno.EEXIST, errno.EMLINK)
_WHITEOUT = bytes(8)
_NOTHING: Mapping[bytes, bytes] = MappingProxyType({})


class _Level(NamedTuple):
    """A folder that is being filled: its own entry, its path, and its entries that are still to be made."""

    entry: TreeEntry
    path: bytes
    left: list[TreeEntry]


def extract(
    reader: Reader,
    root: bytes,
    folder: int,
    on_progress: Callable[[int], None] | None = None,
    made: Mapping[bytes, bytes] = _NOTHING,
    only: Collection[bytes] | None = None,
) -> None:
    """Fill the open, empty folder, which nobody else may change; it gets mode, owner and times of the ROOT's.

    `on_progress`: called after each file with the bytes written so far. `made`: by path, the names of empty files in
    the folder, to be used for the files with these paths. `only`: the names in the folder that are made; None: all.
    Raises StoreDamaged, OSError; a part is there then.
    """
    found = trees.read_root(reader, root)
    groups = trees.read_links(reader, found)
    linked = {path for group in groups for path in group[1:]}
    first_names = {path: group[0] for group in groups for path in group}
    ready = {first_names.get(path, path): name for path, name in made.items()}
    levels = [_Level(found.entry, b"", _chosen(trees.read_entries(reader, found.entry), only))]
    written = 0
    filling = Filling(reader)
    fd = os.dup(folder)
    try:
        while levels:
            level = levels[-1]
            if not level.left:
                for name in ready.values() if len(levels) == 1 else ():  # the ROOT has no such file
                    os.unlink(name, dir_fd=folder)
                finish(fd, level.entry)
                levels.pop()
                if levels:
                    fd = _moved(fd, b"..")
                continue
            entry = level.left.pop()
            path = level.path + b"/" + entry.name if level.path else entry.name
            if entry.type == entries.FOLDER:
                os.mkdir(entry.name, 0o700, dir_fd=fd)
                fd = _moved(fd, entry.name)
                levels.append(_Level(entry, path, trees.read_entries(reader, entry)))
            elif path not in linked:
                if entry.type == entries.FILE and path in ready:
                    os.rename(ready.pop(path), entry.name, src_dir_fd=folder, dst_dir_fd=fd)
                    _fill(filling, fd, entry, os.O_WRONLY)
                else:
                    _make(filling, fd, entry)
                written += entry.size
                if on_progress is not None:
                    on_progress(written)
    finally:
        filling.close()
        os.close(fd)
    for group in groups:
        _link(folder, group)


def _chosen(found: list[TreeEntry], only: Collection[bytes] | None) -> list[TreeEntry]:
    return found if only is None else [one for one in found if one.name in only]


def _fill(filling: Filling, folder: int, entry: TreeEntry, flags: int) -> None:
    """Open the file of `entry` in the open folder with `flags`, and write its content."""
    fd = os.open(entry.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        filling.write(fd, trees.read_rows(filling.reader, entry))
        os.ftruncate(fd, entry.size)  # a hole at the end
        finish(fd, entry)
    finally:
        os.close(fd)


def _make(filling: Filling, folder: int, entry: TreeEntry) -> None:
    """Make an entry that is not a folder."""
    name = entry.name
    if entry.type == entries.FILE:
        _fill(filling, folder, entry, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        return
    if entry.type == entries.SYMLINK:
        os.symlink(entry.text, name, dir_fd=folder)
    elif entry.type == entries.FIFO:
        os.mkfifo(name, 0o600, dir_fd=folder)
    elif entry.type == entries.SOCKET:
        os.mknod(name, stat.S_IFSOCK | 0o600, dir_fd=folder)
    elif entry.type == entries.CHARACTER and entry.text == _WHITEOUT:
        os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=folder)
    else:
        on, said = as_text(os.fsdecode(name)), "it is a device, which no session can make"
        raise StoreDamaged("restore", on, said, ANOTHER, code="image-refused")
    finish(os.fsencode(beneath.name_of(folder)) + b"/" + name, entry)


def finish(place: int | bytes, entry: TreeEntry) -> None:
    """Set owner, attributes, mode, times of a descriptor or path. The owner first: a change removes setuid bits and
    capabilities.
    """
    follow = isinstance(place, int)
    os.chown(place, entry.uid, entry.gid, follow_symlinks=follow)
    for name, value in entry.xattrs:
        os.setxattr(place, name, value, follow_symlinks=follow)
    if entry.type != entries.SYMLINK:
        os.chmod(place, entry.mode)
    os.utime(place, ns=(entry.mtime, entry.mtime), follow_symlinks=follow)


def _link(root: int, group: list[bytes]) -> None:
    """Give the file at the first path the other ones. Folders keep their times."""
    first, *others = (os.fsdecode(path) for path in group)
    try:
        with beneath.parent_of(root, first) as (source, name):
            for other in others:
                with beneath.parent_of(root, other) as (folder, link):
                    facts = os.fstat(folder)
                    os.link(name, link, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
                    os.utime(beneath.name_of(folder), ns=(facts.st_atime_ns, facts.st_mtime_ns))
    except OSError as error:
        if error.errno not in _BAD_LINK:
            raise
        said = f"it cannot get its other names: {error.strerror}"
        raise StoreDamaged("restore", as_text(first), said, ANOTHER) from error


def _moved(fd: int, name: bytes) -> int:
    below = os.open(name, _FOLDER, dir_fd=fd)
    os.close(fd)
    return below
