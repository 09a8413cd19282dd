"""From a ROOT in the store to a folder on disk that is like the one it was read from.

Nothing is written outside of the folder, whatever the ROOT says: each name is made in a folder that is open and that
nobody else may change, none is followed, and entries.py lets through no name that leads elsewhere.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.linux.storage.files import write_all
from waypoint.model.errors import CannotCapture, StoreDamaged, as_text
from waypoint.store.content.object_reader import ANOTHER, ObjectReader
from waypoint.store.trees import entries
from waypoint.store.trees.earlier import Earlier
from waypoint.store.trees.entries import TreeEntry

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EPERM)
_WHITEOUT = bytes(8)


class _Level(NamedTuple):
    """A folder that is being filled: its entry, and its entries that are still to be made."""

    entry: TreeEntry
    left: list[TreeEntry]


class Bringing:
    """Brings one ROOT to a folder. `told`: called after each file with the number of bytes that were written so far.
    `made`: by path in the ROOT, new files without a name (O_TMPFILE) that become those at these paths, as descriptors.
    """

    def __init__(
        self,
        reader: ObjectReader,
        digest: bytes,
        told: Callable[[int], None] | None = None,
        made: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        self._tree = Earlier(reader, digest)
        self._told = told
        self._made = made
        self._written = 0

    def to(self, folder_fd: int) -> None:
        """Fill the folder, which is empty; nobody else may change it. It gets the mode, owner and times of the ROOT.

        Raises StoreDamaged, OSError (a part of it is there then), CannotCapture if the ROOT has a device, which no
        session can make.
        """
        root = self._tree.root()
        assert root is not None
        made = self._made and self._made_by_first_names()
        path: list[bytes] = []
        levels = [_Level(root.entry, self._inside(path))]
        fd = os.dup(folder_fd)
        try:
            while levels:
                level = levels[-1]
                if not level.left:
                    _finish(fd, level.entry)
                    levels.pop()
                    if levels:
                        path.pop()
                        fd = _moved(fd, "..")
                    continue
                entry = level.left.pop()
                if entry.kind != entries.FOLDER:
                    self._make(fd, entry, made.get(b"/".join([*path, entry.name])) if made else None)
                    continue
                os.mkdir(entry.name, 0o700, dir_fd=fd)
                path.append(entry.name)
                fd = _moved(fd, entry.name)
                levels.append(_Level(entry, self._inside(path)))
        finally:
            os.close(fd)
        for group in self._tree.link_groups():
            try:
                _link(folder_fd, group)
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
                on, said = (
                    as_text(os.fsdecode(group[0])),
                    f"it has not the other names that it should: {error.strerror}",
                )
                raise StoreDamaged("bring back", on, said, ANOTHER) from error

    def _inside(self, path: list[bytes]) -> list[TreeEntry]:
        return list(self._tree.inside(path).values())

    def _made_by_first_names(self) -> dict[bytes, int]:
        """What is made already, with the name of each from which it gets the others."""
        first = {path: group[0] for group in self._tree.link_groups() for path in group}
        return {first.get(path, path): fd for path, fd in self._made.items()}

    def _make(self, folder: int, entry: TreeEntry, made: int | None) -> None:
        """Make what is no folder."""
        if entry.kind == entries.REGULAR:
            self.make_file(folder, entry, made)
            return
        if entry.kind == entries.LINK:
            os.symlink(entry.text, entry.name, dir_fd=folder)
        elif entry.kind == entries.FIFO:
            os.mkfifo(entry.name, 0o600, dir_fd=folder)
        elif entry.kind == entries.SOCKET:
            os.mknod(entry.name, stat.S_IFSOCK | 0o600, dir_fd=folder)
        elif entry.kind == entries.CHARACTER and entry.text == _WHITEOUT:
            os.mknod(entry.name, stat.S_IFCHR | 0o600, 0, dir_fd=folder)
        else:
            name = os.fsdecode(entry.name)
            raise CannotCapture("bring back", name, "it is a device, which no session can make", ANOTHER)
        _dress(f"{beneath.name_of(folder)}/{os.fsdecode(entry.name)}", entry)

    def make_file(self, folder: int, entry: TreeEntry, made: int | None = None) -> None:
        """Make the file of the ROOT with this entry in the open folder, which has no such name; of the file `made`, if
        there is one. Raises as `to`.
        """
        if made is None:
            fd = os.open(entry.name, _NEW, 0o600, dir_fd=folder)
        else:
            os.link(beneath.name_of(made), entry.name, dst_dir_fd=folder, follow_symlinks=True)
            fd = os.dup(made)
        try:
            place = 0
            for row in self._tree.rows_of(entry):
                if content := self._tree.piece(row):
                    os.lseek(fd, place, os.SEEK_SET)
                    write_all(fd, content)
                place += row[1]
            os.truncate(fd, place)
            self._written += place
            _finish(fd, entry)
        finally:
            os.close(fd)
        if self._told is not None:
            self._told(self._written)


def _moved(fd: int, name: bytes | str) -> int:
    """A descriptor of the folder `name` in `fd`, in place of `fd`."""
    below = os.open(name, _FOLDER, dir_fd=fd)
    os.close(fd)
    return below


def _finish(fd: int, entry: TreeEntry) -> None:
    """Owner, attributes, mode, times, of what is open. The owner first: a change takes setuid and attributes away."""
    os.chown(fd, entry.uid, entry.gid)
    for name, value in entry.xattrs:
        os.setxattr(fd, name, value)
    os.chmod(fd, entry.mode)
    os.utime(fd, ns=(entry.mtime, entry.mtime))


def _dress(path: str, entry: TreeEntry) -> None:
    """As `_finish`, of what cannot be opened."""
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    for name, value in entry.xattrs:
        os.setxattr(path, name, value, follow_symlinks=False)
    if entry.kind != entries.LINK:
        os.chmod(path, entry.mode)
    os.utime(path, ns=(entry.mtime, entry.mtime), follow_symlinks=False)


def _link(root: int, group: list[bytes]) -> None:
    """Make all paths of the group names of the first one. Folders keep their times."""
    first, *others = (os.fsdecode(path) for path in group)
    with beneath.parent_of(root, first) as (source, name):
        for other in others:
            with beneath.parent_of(root, other) as (folder, link), _keeping_times(folder):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(link, dir_fd=folder)
                os.link(name, link, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)


@contextlib.contextmanager
def _keeping_times(folder: int) -> Iterator[None]:
    facts = os.fstat(folder)
    yield
    os.utime(beneath.name_of(folder), ns=(facts.st_atime_ns, facts.st_mtime_ns))
