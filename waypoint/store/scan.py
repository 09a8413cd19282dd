"""Storing a folder: from a folder on disk, which nobody changes meanwhile, to a ROOT object.

If the store has an earlier state of the folder, and the caller knows what has changed since, only that is read.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from waypoint.linux.storage import beneath
from waypoint.model.errors import CannotCapture, as_text
from waypoint.store import entries, trees
from waypoint.store.cutting import extents, pieces, read_at, split
from waypoint.store.entries import Root, Row, TreeEntry
from waypoint.store.objects import Buffer, Kind
from waypoint.store.store import Writer

LEFT_OUT = (
    *(b"trusted.overlay.origin", b"trusted.overlay.uuid", b"user.overlay.origin", b"user.overlay.uuid"),
    *(b"trusted.waypoint.sealed", b"user.waypoint.sealed"),
)
"""Attributes that name inodes and file systems of this machine, and a mark of Waypoint's own."""

_LINKS_PART = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Cut(NamedTuple):
    """A part of a file. `near`: the digest of a DATA object that may differ little."""

    length: int
    near: bytes | None = None


CutFile = Callable[[bytes, int, int], list[Cut] | None]
"""From a file's path, descriptor and size to the parts that it is cut into; None: by its content."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What has changed in a folder since an earlier state. Paths are relative to the folder.

    `paths`: changed files and folders, with all folders above them. `new_names`: by the inode of a folder, names that
    were added to it: what has such a name may have been moved there, with everything in it.
    """

    paths: Collection[bytes] = ()
    new_names: dict[int, set[bytes]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """`earlier`: the ROOT of an earlier state, for `changed` and for DELTA objects. `changed`: None: read everything.
    `cut`: for files whose parts are known better. `is_timeless`: store 0 for all times. `leave_out`: paths of folders
    that are stored empty. `only`: if not empty, the names in the folder that are stored.
    """

    earlier: bytes | None = None
    changed: Changed | None = None
    cut: CutFile | None = None
    is_timeless: bool = False
    leave_out: Collection[bytes] = ()
    only: Collection[bytes] = ()


_DEFAULT = ScanOptions()
_READ_BYTES = 1 << 20
"""Memory is read in such pieces: larger ones do not stay in the processor's cache until they are hashed."""


def store_folder(writer: Writer, folder: int, options: ScanOptions = _DEFAULT) -> bytes:
    """Store the open folder; return the digest of its ROOT. The caller commits.

    Raises OSError ESTALE if somebody changes the folder, CannotCapture if a file cannot be stored, StoreDamaged if the
    earlier state cannot be read.
    """
    changed = options.changed
    if changed is not None and options.earlier is not None and not changed.paths and not changed.new_names:
        return options.earlier
    return _Scan(writer, options).run(folder)


@dataclass(slots=True)
class _Level:
    """A folder that is being read. `is_new`: nothing of the earlier state is valid in it. `earlier`: the entries of the
    earlier state. `left`: its subfolders that are still to be read.
    """

    path: bytes
    facts: os.stat_result
    is_new: bool
    earlier_rows: list[Row]
    earlier: dict[bytes, TreeEntry]
    found: list[TreeEntry] = field(default_factory=list)
    left: list[tuple[bytes, bool]] = field(default_factory=list)


class _Scan:
    def __init__(self, writer: Writer, options: ScanOptions) -> None:
        self.writer = writer
        self.options = options
        self.root = trees.read_root(writer, options.earlier) if options.earlier is not None else None
        self.links: dict[int, list[bytes]] = {}  # paths of files with several names, by inode
        self.linked: dict[int, TreeEntry] = {}  # the entry of the first of these names

    def run(self, folder: int) -> bytes:
        """Descend by names and ascend by `..`, with one descriptor: folders may be nested to any depth."""
        fd = os.open(".", _FOLDER, dir_fd=folder)
        try:
            levels = [self._enter(fd, b"", self.root.entry if self.root else None, is_new=self.options.changed is None)]
            while True:
                level = levels[-1]
                if level.left:
                    name, is_new = level.left.pop()
                    fd = _moved(fd, name)
                    path = level.path + b"/" + name if level.path else name
                    levels.append(self._enter(fd, path, level.earlier.get(name), is_new=is_new))
                    continue
                entry = self._folder_entry(fd, level)
                levels.pop()
                if not levels:
                    break
                levels[-1].found.append(entry)
                fd = _moved(fd, b"..")
                if not os.path.samestat(os.fstat(fd), levels[-1].facts):
                    raise OSError(errno.ESTALE, "another process has moved a folder while it was being read")
            return self._put_root(folder, entry)
        finally:
            os.close(fd)

    def _enter(self, fd: int, path: bytes, earlier: TreeEntry | None, *, is_new: bool) -> _Level:
        """Read the open folder, without its subfolders."""
        facts, rows, known = os.fstat(fd), list[Row](), dict[bytes, TreeEntry]()
        if earlier is not None and earlier.type == entries.FOLDER:
            rows = trees.read_rows(self.writer, earlier)
            known = {entry.name: entry for entry in trees.read_entries(self.writer, earlier)}
        level = _Level(path, facts, is_new, rows, known)
        if path in self.options.leave_out:
            return level
        changed = self.options.changed or Changed()
        new_names = changed.new_names.get(facts.st_ino, set())
        with os.scandir(fd) as there:
            for one in there:
                name, is_folder = os.fsencode(one.name), one.is_dir(follow_symlinks=False)
                below = path + b"/" + name if path else name
                if not path and self.options.only and name not in self.options.only:
                    continue
                before = known.get(name)
                is_new_name = is_new or name in new_names or before is None
                if before is not None and not is_new_name and below not in changed.paths:
                    level.found.append(before)
                elif is_folder:
                    level.left.append((name, is_new_name or (before is not None and before.type != entries.FOLDER)))
                else:
                    level.found.append(self._file_entry(fd, name, below, before))
        return level

    def _file_entry(self, folder: int, name: bytes, path: bytes, earlier: TreeEntry | None) -> TreeEntry:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        entry = self._bare_entry(name, facts, os.fsencode(beneath.name_of(folder)) + b"/" + name)
        if facts.st_ino in self.linked:
            entry = msgspec.structs.replace(self.linked[facts.st_ino], name=name)
        elif entry.type == entries.FILE:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOATIME, dir_fd=folder)
            try:
                self._put_content(entry, fd, path, facts, earlier)
            finally:
                os.close(fd)
        elif entry.type == entries.SYMLINK:
            entry.text = os.readlink(name, dir_fd=folder)
        elif entry.type in (entries.CHARACTER, entries.BLOCK):
            entry.text = os.major(facts.st_rdev).to_bytes(4) + os.minor(facts.st_rdev).to_bytes(4)
        if facts.st_nlink > 1:
            self.links.setdefault(facts.st_ino, []).append(path)
            self.linked[facts.st_ino] = entry
        return entry

    def _bare_entry(self, name: bytes, facts: os.stat_result, place: bytes | int) -> TreeEntry:
        """The entry without content. `place`: a path or descriptor for its attributes."""
        follow = isinstance(place, int)
        names = sorted(os.fsencode(one) for one in os.listxattr(place, follow_symlinks=follow))
        return TreeEntry(
            name=name,
            type=entries.type_of(facts.st_mode),
            mode=stat.S_IMODE(facts.st_mode),
            uid=facts.st_uid,
            gid=facts.st_gid,
            mtime=0 if self.options.is_timeless else entries.storable_time(facts.st_mtime_ns),
            xattrs=[(one, os.getxattr(place, one, follow_symlinks=follow)) for one in names if one not in LEFT_OUT],
            rows=[],
        )

    def _put_content(
        self, entry: TreeEntry, fd: int, path: bytes, facts: os.stat_result, earlier: TreeEntry | None
    ) -> None:
        cuts = self.options.cut(path, fd, facts.st_size) if self.options.cut is not None else None
        if cuts is not None:
            self.writer.expect(cut.near for cut in cuts if cut.near is not None)
        parts = self._by_content(fd, facts, earlier) if cuts is None else _by_cuts(fd, cuts)
        rows = [(self.writer.put(Kind.DATA, part, near) if part else None, length) for part, length, near in parts]
        self._set_rows(entry, rows)

    def _by_content(
        self, fd: int, facts: os.stat_result, earlier: TreeEntry | None
    ) -> Iterator[tuple[Buffer, int, bytes | None]]:
        """Content (empty for a hole) and length of the parts of a file, and the digest of the part that was there."""
        rows: list[Row] = []
        if earlier is not None and earlier.type == entries.FILE:
            rows = trees.read_rows(self.writer, earlier)
        near = iter(rows)
        for extent in extents(fd, facts):
            if extent.is_hole:
                next(near, None)
                yield b"", extent.length, None
                continue
            for piece in pieces(fd, extent.offset, extent.length):
                yield piece, len(piece), next(near, (None, 0))[0]

    def _folder_entry(self, fd: int, level: _Level) -> TreeEntry:
        name = level.path.rpartition(b"/")[2]
        entry = self._bare_entry(name, level.facts, fd)
        rows: list[Row] = []
        for place, group in enumerate(entries.split_entries(level.found)):
            content = entries.encode(group)
            if len(content) > entries.MAX_CODED_BYTES:
                raise _too_many_attributes(level.path, group)
            near = level.earlier_rows[place][0] if place < len(level.earlier_rows) else None
            rows.append((self.writer.put(Kind.TREE, content, near), len(group)))
        self._set_rows(entry, rows)
        return entry

    def _set_rows(self, entry: TreeEntry, rows: list[Row]) -> None:
        entry.rows, entry.lists = rows, len(rows) > entries.MAX_INLINE_ROWS
        if entry.lists:
            entry.rows = [
                (self.writer.put(Kind.LIST, entries.encode(group)), sum(length for _, length in group))
                for group in entries.split_rows(rows)
            ]

    def _put_root(self, folder: int, entry: TreeEntry) -> bytes:
        entry.name = b""
        rows: list[Row] = []
        groups = list(self._link_groups(folder))
        content = entries.encode_links(groups) if groups else b""
        if len(content) > entries.MAX_LINKS_BYTES:
            said = f"the names of files with several names (hard links) have more than {len(content) >> 20} MiB"
            raise CannotCapture("store", "the files of the session", said, "remove some of these names, and try again")
        near = iter(self.root.links if self.root else [])
        for start in range(0, len(content), _LINKS_PART):
            part = content[start : start + _LINKS_PART]
            rows.append((self.writer.put(Kind.DATA, part, next(near, (None, 0))[0]), len(part)))
        return self.writer.put(Kind.ROOT, entries.encode(Root(entry, rows)))

    def _link_groups(self, folder: int) -> Iterator[list[bytes]]:
        """The paths of each file with several names. Those of the earlier state are looked at again."""
        if self.root is not None and self.options.changed is not None:
            candidates = {path for group in trees.read_links(self.writer, self.root) for path in group}
            candidates |= {path for group in self.links.values() for path in group}
            self.links.clear()
            for path in candidates:
                facts = _facts_of(folder, path)
                if facts is not None and facts.st_nlink > 1 and not stat.S_ISDIR(facts.st_mode):
                    self.links.setdefault(facts.st_ino, []).append(path)
        return (paths for paths in self.links.values() if len(paths) > 1)


def _facts_of(folder: int, path: bytes) -> os.stat_result | None:
    try:
        with beneath.parent_of(folder, os.fsdecode(path)) as (above, name):
            return os.stat(name, dir_fd=above, follow_symlinks=False)
    except OSError:  # it is gone, or a link is in its place
        return None


def _by_cuts(fd: int, cuts: list[Cut]) -> Iterator[tuple[Buffer, int, bytes | None]]:
    """As `_by_content`. A part of zeros is stored as a hole."""
    place = 0
    for group in _windows(cuts):
        size = sum(cut.length for cut in group)
        parts = split(read_at(fd, place, size), (cut.length for cut in group))
        place += size
        for part, cut in zip(parts, group, strict=True):
            yield (b"" if _is_zeros(part) else part), cut.length, cut.near


def _windows(cuts: list[Cut]) -> Iterator[list[Cut]]:
    """Consecutive cuts that are read together."""
    group: list[Cut] = []
    size = 0
    for cut in cuts:
        if group and size + cut.length > _READ_BYTES:
            yield group
            group, size = [], 0
        group.append(cut)
        size += cut.length
    yield group


def _is_zeros(part: memoryview) -> bool:
    return not any(part[:64]) and bytes(part) == bytes(len(part))


def _moved(fd: int, name: bytes) -> int:
    """A descriptor of the folder `name` in `fd`, in place of `fd`."""
    below = os.open(name, _FOLDER, dir_fd=fd)
    os.close(fd)
    return below


def _too_many_attributes(path: bytes, group: list[TreeEntry]) -> CannotCapture:
    largest = max(group, key=lambda entry: sum(len(value) for _, value in entry.xattrs))
    on = as_text(os.fsdecode(path + b"/" + largest.name))
    said = "it has more extended attributes than the store accepts"
    return CannotCapture("store", on, said, "remove some of them (setfattr -x), and try again")
