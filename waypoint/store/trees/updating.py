"""From a ROOT in the store, and what has changed in its folder since, to a new ROOT: only what has changed is read."""

import errno
import os
import stat
from collections import defaultdict
from dataclasses import dataclass, field

from waypoint.linux.snapshots.btrfs_send import Differences
from waypoint.linux.storage import beneath
from waypoint.store.content.object_writer import ObjectWriter
from waypoint.store.trees import entries
from waypoint.store.trees.earlier import Earlier
from waypoint.store.trees.entries import TreeEntry
from waypoint.store.trees.gathering import (
    CutUp,
    Gathering,
    bare_entry,
    cut_as_usual,
    gather_folder,
    put_root,
    put_trees,
    read_entry,
)

KeyPath = tuple[bytes, ...]
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(slots=True)
class _FolderWork:
    """What is to be looked at in one folder: names that were touched, of which `moved` have come from elsewhere, with
    all below them; and the new entries of its folders, whose contents have changed.
    """

    touched: set[bytes] = field(default_factory=set)
    moved: set[bytes] = field(default_factory=set)
    folders: dict[bytes, TreeEntry] = field(default_factory=dict)


def update(
    writer: ObjectWriter, folder_fd: int, earlier: bytes, changes: Differences, *, cut: CutUp = cut_as_usual
) -> bytes:
    """Put the folder `folder_fd` into the store, which has it as the ROOT `earlier` from before these changes. Returns
    the digest of its ROOT; the caller commits. Paths that are not there, and were not, do no harm. Raises as `gather`.
    """
    job = Gathering(writer, Earlier(writer, earlier), cut)
    root = job.earlier.root()
    assert root is not None
    own = root.entry
    work = _sorted_out(changes.touched | _same_files(job.earlier, changes), changes.moved)
    for path in sorted(work, key=len, reverse=True):
        entry = _folder(job, folder_fd, path, work[path])
        if not path:
            own = entry or own
        elif entry is not None:
            work[path[:-1]].folders[path[-1]] = entry
    _find_links(job, folder_fd)
    own.name = b""
    return put_root(job, own)


def _same_files(earlier: Earlier, changes: Differences) -> set[bytes]:
    """The names of files of which another name was touched, or may have been under the new name of its folder."""
    groups = earlier.link_groups()
    if not groups:
        return set()
    left = {path + b"/" for path in changes.left if _is_folder(earlier.find(path.split(b"/")))}
    return {
        name
        for group in groups
        if any(path in changes.touched or any(path.startswith(folder) for folder in left) for path in group)
        for name in group
    }


def _is_folder(entry: TreeEntry | None) -> bool:
    return entry is not None and entry.kind == entries.FOLDER


def _sorted_out(touched: set[bytes], moved: set[bytes]) -> dict[KeyPath, _FolderWork]:
    """By folder, what is to be done in it; each with all folders above it."""
    work: dict[KeyPath, _FolderWork] = defaultdict(_FolderWork)
    work[()] = _FolderWork()
    for path in touched | moved:
        names = tuple(path.split(b"/")) if path else ()
        for depth in range(len(names)):
            work[names[:depth]].touched.add(names[depth])
        if path in moved and names:
            work[names[:-1]].moved.add(names[-1])
    return work


def _folder(job: Gathering, root: int, path: KeyPath, work: _FolderWork) -> TreeEntry | None:
    """The new entry of the folder at `path`; None if it is no folder now, or its own folder is read as a whole."""
    try:
        fd = beneath.open_beneath(root, os.fsdecode(b"/".join(path)), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        return None
    try:
        inside = dict(job.earlier.inside(list(path)))
        for name in work.touched:
            inside.pop(name, None)
            entry = _looked_at(job, fd, path, name, work)
            if entry is not None:
                inside[name] = entry
        entry = bare_entry(path[-1] if path else b"", os.fstat(fd), fd)
        entry.rows = put_trees(job, list(path), list(inside.values()))
        return entry
    finally:
        os.close(fd)


def _looked_at(job: Gathering, folder: int, path: KeyPath, name: bytes, work: _FolderWork) -> TreeEntry | None:
    """The entry of a name that was touched; None if it is gone."""
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(facts.st_mode):
        return read_entry(job, folder, os.fsdecode(name), list(path))
    before = job.earlier.find([*path, name])
    if name not in work.moved and before is not None and _is_folder(before):
        return work.folders.get(name) or _with_facts(folder, name, facts, before)
    return gather_folder(job, folder, os.fsdecode(name), [*path, name])


def _with_facts(folder: int, name: bytes, facts: os.stat_result, before: TreeEntry) -> TreeEntry:
    """The entry of a folder in which nothing has changed."""
    entry = bare_entry(name, facts, f"{beneath.name_of(folder)}/{os.fsdecode(name)}")
    entry.rows = before.rows
    return entry


def _find_links(job: Gathering, root: int) -> None:
    """Find out again which of the names that were one file before, or may be now, are one."""
    candidates = {path for group in job.earlier.link_groups() for path in group}
    candidates |= {path for group in job.links.values() for path in group}
    job.links.clear()
    for path in candidates:
        try:
            with beneath.parent_of(root, os.fsdecode(path)) as (folder, name):
                facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue
        if facts.st_nlink > 1 and not stat.S_ISDIR(facts.st_mode):
            job.links.setdefault(facts.st_ino, []).append(path)
