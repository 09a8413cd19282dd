"""From a folder on disk, which nobody changes meanwhile, to a ROOT in the store: all of it is read."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from waypoint.linux.storage.beneath import name_of
from waypoint.linux.storage.deep import Visit, walk
from waypoint.model.errors import CannotCapture, as_text
from waypoint.store.content.object_writer import ObjectWriter
from waypoint.store.packs.digests import Kind
from waypoint.store.trees import entries
from waypoint.store.trees.cutting import extents, pieces, read_at
from waypoint.store.trees.earlier import Earlier, NamePath
from waypoint.store.trees.entries import Piece, Root, TreeEntry

CutAt = tuple[int, bytes | None]
"""The length of a part of a file, and the digest of an object that may differ little."""
CutUp = Callable[[NamePath, int, int], list[CutAt] | None]
"""From the path of a file, from the root on, an open descriptor and its size to the parts that it is to be cut into;
None: as is usual. For files whose maker knows better where they are alike.
"""

LEFT_OUT = (b"trusted.overlay.origin", b"trusted.overlay.uuid", b"user.overlay.origin", b"user.overlay.uuid")
"""Attributes that name files of this machine by number."""


def cut_as_usual(path: NamePath, fd: int, size: int) -> list[CutAt] | None:
    return None


@dataclass(slots=True)
class Gathering:
    """What is being read into the store. `writer`: where to. `earlier`: a ROOT that may be alike, for differences.
    `cut`: see CutUp. `is_timeless`: all times are 0, because they tell nothing but when these files were written.
    `links`: by inode, the paths of files with several names. `files`, `size`: how many were read, and how many bytes
    they have. `told`: called now and then with these.
    """

    writer: ObjectWriter
    earlier: Earlier
    cut: CutUp = cut_as_usual
    is_timeless: bool = False
    links: dict[int, list[bytes]] = field(default_factory=dict)
    files: int = 0
    size: int = 0
    told: Callable[[int, int], None] | None = None

    def entry_of(self, name: bytes, facts: os.stat_result, place: int | str) -> TreeEntry:
        """As `bare_entry`."""
        entry = bare_entry(name, facts, place)
        if self.is_timeless:
            entry.mtime = 0
        return entry


def gather(
    writer: ObjectWriter,
    folder_fd: int,
    name: str = ".",
    *,
    earlier: bytes = b"",
    cut: CutUp = cut_as_usual,
    is_timeless: bool = False,
) -> bytes:
    """Put the folder `name` in `folder_fd` into the store. Returns the digest of its ROOT. The caller commits.

    `earlier`: the digest of a ROOT with which it may have much in common; "": none. `is_timeless`: as in Gathering.
    Raises OSError (ESTALE, EOFError if somebody changes the folder), StoreDamaged if what `earlier` has cannot be read.
    """
    job = Gathering(writer, Earlier(writer, earlier), cut, is_timeless)
    entry = gather_folder(job, folder_fd, name, [])
    entry.name = b""
    return put_root(job, entry)


def gather_names(writer: ObjectWriter, folder_fd: int, names: list[str], earlier: bytes = b"") -> bytes:
    """As `gather`, timeless, of the folder `folder_fd` as if it had only these names, as far as they are there."""
    job = Gathering(writer, Earlier(writer, earlier), is_timeless=True)
    inside = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            is_folder = stat.S_ISDIR(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode)
            make = gather_folder if is_folder else read_entry
            inside.append(make(job, folder_fd, name, [os.fsencode(name)] if is_folder else []))
    entry = job.entry_of(b"", os.fstat(folder_fd), folder_fd)
    entry.rows = put_trees(job, [], inside)
    return put_root(job, entry)


def put_root(job: Gathering, entry: TreeEntry) -> bytes:
    """The ROOT of the folder with this entry and the links that the job has found."""
    groups = [paths for paths in job.links.values() if len(paths) > 1]
    rows: list[Piece] = []
    if groups:
        content = entries.encode_links(groups)
        if len(content) > entries.MOST_LINKS:
            said = f"files with several names (hard links) have more than {entries.MOST_LINKS >> 20} MiB of names"
            next_step = "remove some of them, and checkpoint again"
            raise CannotCapture("put into the store", "the files of the session", said, next_step)
        near = iter(job.earlier.links())
        for start in range(0, len(content), 1 << 20):
            piece = content[start : start + (1 << 20)]
            rows.append((job.writer.put(Kind.DATA, piece, next(near, (None, 0))[0]), len(piece)))
    whole = entries.encode_root(Root(entry, rows))
    if len(whole) > entries.MOST_CODED:
        raise _too_much([], [entry])
    return job.writer.put(Kind.ROOT, whole, job.earlier.digest or None)


def gather_folder(job: Gathering, folder_fd: int, name: str, above: NamePath) -> TreeEntry:
    """The entry of the folder `name` in `folder_fd`, with all in it. `above`: its path from the root, name by name."""
    done: list[list[TreeEntry]] = [[]]
    entry: TreeEntry | None = None
    for visit in walk(folder_fd, name):
        depth = len(visit.path)
        while len(done) <= depth + 1:
            done.append([])
        path = [*above, *map(os.fsencode, visit.path)]
        inside = [read_entry(job, visit.fd, other, path) for other in visit.others]
        entry = folder_entry(job, visit, path, inside + done[depth + 1])
        done[depth + 1] = []
        done[depth].append(entry)
    assert entry is not None
    return entry


def folder_entry(job: Gathering, visit: Visit, path: NamePath, inside: list[TreeEntry]) -> TreeEntry:
    """The entry of an open folder with these entries in it."""
    entry = job.entry_of(path[-1] if path else b"", os.fstat(visit.fd), visit.fd)
    entry.rows = put_trees(job, path, inside)
    return entry


def put_trees(job: Gathering, path: NamePath, inside: list[TreeEntry]) -> list[Piece]:
    """Put the TREEs of the folder at `path`, which has these entries."""
    near = job.earlier.trees(path)
    rows: list[Piece] = []
    for place, (content, count) in enumerate(entries.split(inside)):
        if len(content) > entries.MOST_CODED:
            raise _too_much(path, inside)
        rows.append((job.writer.put(Kind.TREE, content, near[place][0] if place < len(near) else None), count))
    return rows


def _too_much(path: NamePath, inside: list[TreeEntry]) -> CannotCapture:
    largest = max(inside, key=lambda entry: sum(len(value) for _, value in entry.xattrs))
    on = as_text(os.fsdecode(b"/".join([*path, largest.name])))
    said = f"it has more attributes (xattr) than the {entries.MOST_CODED >> 20} MiB that the store takes of a file"
    return CannotCapture("put into the store", on, said, "remove some of them, and checkpoint again")


def read_entry(job: Gathering, folder_fd: int, name: str, above: NamePath) -> TreeEntry:
    """The entry of `name`, which is no folder, in the folder `folder_fd` at the path `above`; its content is put."""
    facts = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    encoded = os.fsencode(name)
    entry = job.entry_of(encoded, facts, f"{name_of(folder_fd)}/{name}")
    if entry.kind == entries.REGULAR:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOATIME, dir_fd=folder_fd)
        try:
            put_content(job, entry, fd, [*above, encoded], facts.st_size)
        finally:
            os.close(fd)
        job.files += 1
        job.size += facts.st_size
        if job.told is not None:
            job.told(job.files, job.size)
    elif entry.kind == entries.LINK:
        entry.text = os.fsencode(os.readlink(name, dir_fd=folder_fd))
    elif entry.kind in (entries.CHARACTER, entries.BLOCK):
        entry.text = os.major(facts.st_rdev).to_bytes(4) + os.minor(facts.st_rdev).to_bytes(4)
    if facts.st_nlink > 1:
        job.links.setdefault(facts.st_ino, []).append(b"/".join([*above, encoded]))
    return entry


def bare_entry(name: bytes, facts: os.stat_result, place: int | str) -> TreeEntry:
    """The entry without content. `place`: where its attributes are, by descriptor or path."""
    follow = isinstance(place, int)
    names = sorted(os.fsencode(one) for one in os.listxattr(place, follow_symlinks=follow))
    xattrs = [(one, os.getxattr(place, one, follow_symlinks=follow)) for one in names if one not in LEFT_OUT]
    return TreeEntry(
        name=name,
        kind=entries.kind_of(facts.st_mode),
        mode=stat.S_IMODE(facts.st_mode),
        uid=facts.st_uid,
        gid=facts.st_gid,
        mtime=entries.kept_time(facts.st_mtime_ns),
        xattrs=xattrs,
        rows=[],
    )


def put_content(job: Gathering, entry: TreeEntry, fd: int, path: NamePath, size: int) -> None:
    """Put the content of the open file at `path`, which is `size` bytes long, and note it in its entry. Raises OSError,
    EOFError if the file is shorter.
    """
    cuts = job.cut(path, fd, size)
    parts = _usual(job, path, fd, size) if cuts is None else _given(fd, cuts)
    rows = [(job.writer.put(Kind.DATA, content, near) if content else None, length) for content, length, near in parts]
    if len(rows) > entries.MOST_INLINE:
        entry.lists = True
        lists = [(entries.encode_rows(part), sum(row[1] for row in part)) for part in entries.split_rows(rows)]
        rows = [(job.writer.put(Kind.LIST, content), length) for content, length in lists]
    entry.rows = rows


def _usual(job: Gathering, path: NamePath, fd: int, size: int) -> Iterator[tuple[bytes, int, bytes | None]]:
    """The parts of a file: content, none for a hole; length; the digest of what was there before."""
    near = iter(job.earlier.content(path))
    for extent in extents(fd, size):
        if extent.is_hole:
            next(near, None)
            yield b"", extent.length, None
            continue
        for piece in pieces(fd, extent.offset, extent.length):
            yield piece, len(piece), next(near, (None, 0))[0]


def _given(fd: int, cuts: list[CutAt]) -> Iterator[tuple[bytes, int, bytes | None]]:
    """As `_usual`. What is nothing but zeros is a hole."""
    place = 0
    for length, near in cuts:
        piece = read_at(fd, place, length)
        place += length
        yield (b"" if piece == bytes(length) else piece), length, near
