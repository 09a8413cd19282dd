"""Making copies of files and folders, with all that belongs to them, in a folder that nobody else may enter.

Content, holes, owner, mode, times, extended attributes (with them ACLs and capabilities), links, and which names are
of one file are as they were.
"""

import errno
import os
import stat
from collections.abc import Callable

from waypoint.linux.storage import beneath
from waypoint.upper.comparing.stack import below
from waypoint.upper.copying import copy_content
from waypoint.upper.writing.content import Roots, ShownEntry, opened, shown
from waypoint.upper.writing.file_marks import attributes_of, differ, is_same, set_attributes, set_mtime, xattrs_of
from waypoint.upper.writing.whole_digest import PartFacts, WholeDigest, add_entry, head_of

_AT_ONCE = 1 << 16
"""A file of at most so many bytes is read and written by one call each."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PERMISSIONS = 0o777
_ORIGIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Maker:
    """Makes copies below one root, all of one mount. Files that had several names in the source have them in the
    copies.
    """

    def __init__(self, root: int, is_wanted: Callable[[str], bool] = lambda _: True) -> None:
        """`root`: a descriptor. `is_wanted`: whether what is shown at a path is to be copied."""
        self._root = root
        self._is_wanted = is_wanted
        self._links: dict[tuple[int, int], str] = {}  # by device and inode: a path of the copy, below the root
        self._is_root = os.geteuid() == 0
        self._whole: WholeDigest | None = None  # of what is being made
        self._whole_at = ""  # its path below the root

    def make_known(self, roots: Roots, entry: ShownEntry, folder: int, path: str, at: str) -> bytes:
        """As `make`. Returns the digest of what was made (`whole_digest`)."""
        whole = self._whole = WholeDigest()
        self._whole_at = path
        try:
            self.make(roots, entry, folder, path, at)
        finally:
            self._whole = None
        return whole.digest()

    def make(self, roots: Roots, entry: ShownEntry, folder: int, path: str, at: str) -> None:
        """Copy `entry` to `path` below the root; `folder` is a descriptor of the folder there. `at`: where it is shown.
        Raises OSError, StateConflict.
        """
        umask = os.umask(0)  # files get their modes when they are made: nobody else may enter the folder
        try:
            self._make(roots, entry, folder, path, at)
        finally:
            os.umask(umask)

    def _make(self, roots: Roots, entry: ShownEntry, folder: int, path: str, at: str) -> None:
        name = path.rpartition("/")[2]
        if not entry.is_folder:
            self._make_one(entry, folder, path, name)
            return
        os.mkdir(name, 0o700, dir_fd=folder)
        waiting = [(entry.upper, entry.lower, path, at)]
        while waiting:
            upper, lower, path, at = waiting.pop()
            with opened(self._root, path) as target:
                for child in shown(roots, upper, lower):
                    if not self._is_wanted(below(at, child.name)):
                        continue
                    if child.is_folder:
                        os.mkdir(child.name, 0o700, dir_fd=target)
                        inside = below(path, child.name), below(at, child.name)
                        waiting.append((child.upper, child.lower, *inside))
                    else:
                        self._make_one(child, target, f"{path}/{child.name}", child.name)
                origin = (roots.upper, upper) if upper is not None else (roots.lower, lower or "")
                with opened(*origin) as source:  # its folders are made: nothing changes its times any more
                    wanted = attributes_of(source)
                    set_attributes(target, attributes_of(target), wanted)
                    set_mtime(target, wanted.mtime_ns)
                    self._note(path, (stat.S_IFDIR | wanted.mode, wanted.uid, wanted.gid, 0), wanted.xattrs)

    def _note(self, path: str, head: PartFacts, xattrs: dict[str, bytes], content: bytes | int = b"") -> None:
        if self._whole is not None:
            self._whole.add(path[len(self._whole_at) + 1 :], head, xattrs, content)

    def _make_one(self, entry: ShownEntry, folder: int, path: str, name: str) -> None:
        facts = entry.facts
        if facts.st_nlink > 1:
            key = (facts.st_dev, facts.st_ino)
            if key in self._links:
                with beneath.parent_of(self._root, self._links[key]) as (there, first):
                    os.link(first, name, src_dir_fd=there, dst_dir_fd=folder, follow_symlinks=False)
                if self._whole is not None:
                    add_entry(self._whole, path[len(self._whole_at) + 1 :], entry)
                return
            self._links[key] = path
        if stat.S_ISREG(facts.st_mode):
            self._copy_file(entry, folder, path, name)
            return
        target = ""
        if stat.S_ISLNK(facts.st_mode):
            target = os.readlink(entry.name, dir_fd=entry.folder)
            os.symlink(target, name, dir_fd=folder)
        else:
            os.mknod(name, stat.S_IFMT(facts.st_mode) | 0o600, facts.st_rdev, dir_fd=folder)
        os.chown(name, facts.st_uid, facts.st_gid, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(facts.st_mode):
            os.chmod(name, stat.S_IMODE(facts.st_mode), dir_fd=folder)
        copy, xattrs = f"{beneath.name_of(folder)}/{name}", xattrs_of(f"{beneath.name_of(entry.folder)}/{entry.name}")
        for attribute, value in xattrs.items():
            _set_xattr(copy, attribute, value)
        times = facts.st_atime_ns, facts.st_mtime_ns
        os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
        self._note(path, head_of(facts), xattrs, os.fsencode(target))

    def _copy_file(self, entry: ShownEntry, folder: int, path: str, name: str) -> None:
        facts = entry.facts
        content: bytes | int = b""
        origin = os.open(entry.name, _ORIGIN, dir_fd=entry.folder)
        try:
            mode = stat.S_IMODE(facts.st_mode)
            copy = os.open(name, _NEW, mode & _PERMISSIONS, dir_fd=folder)
            try:
                if facts.st_size > _AT_ONCE or facts.st_blocks * 512 < facts.st_size:
                    copy_content(origin, copy, facts)
                    content = origin
                elif facts.st_size:
                    content = os.read(origin, _AT_ONCE)
                    if os.write(copy, content) != len(content):
                        copy_content(origin, copy, facts)
                if not self._is_root or facts.st_uid or facts.st_gid:
                    os.fchown(copy, facts.st_uid, facts.st_gid)  # takes set-id bits and capabilities away
                if mode & ~_PERMISSIONS:
                    os.fchmod(copy, mode)
                xattrs = xattrs_of(origin)
                for attribute, value in xattrs.items():
                    _set_xattr(copy, attribute, value)
                os.utime(copy, ns=(facts.st_atime_ns, facts.st_mtime_ns))
                self._note(path, head_of(facts), xattrs, content)
            finally:
                os.close(copy)
        finally:
            os.close(origin)


def _set_xattr(copy: int | str, name: str, value: bytes) -> None:
    """Raises OSError ENOTSUP if the file system does not take it: ext4 says ENOSPC of more than it has a block for."""
    try:
        os.setxattr(copy, name, value, follow_symlinks=isinstance(copy, int))
    except OSError as error:
        said = f"its attribute {name} of {len(value)} bytes: {os.strerror(error.errno or 0)}"
        raise OSError(errno.ENOTSUP, said) from error


def is_same_folder(roots: Roots, entry: ShownEntry, folder: int) -> bool:
    """Whether what `entry` shows is the same as what the open folder has; times do not count. Raises OSError."""
    waiting = [(entry.upper, entry.lower, "")]
    while waiting:
        upper, lower, path = waiting.pop()
        origin = (roots.upper, upper) if upper is not None else (roots.lower, lower or "")
        with opened(*origin) as source, opened(folder, path) as other:
            if differ(attributes_of(source), attributes_of(other)):
                return False
            names = set(os.listdir(other))
            for child in shown(roots, upper, lower):
                if child.name not in names:
                    return False
                names.remove(child.name)
                if child.is_folder:
                    waiting.append((child.upper, child.lower, below(path, child.name)))
                elif not is_same((child.folder, child.name), (other, child.name)):
                    return False
            if names:
                return False
    return True
