"""Restoring the files of a mounted overlay to the content of a sealed upper tree over the same base.

Changes are written through the mount, because the upper directory of a mounted overlay must not be written to directly
(overlayfs.rst, "Changes to underlying filesystems"). Only paths that have an entry in one of the two upper directories
can differ, so only these are compared. Nobody else may write to the overlay meanwhile.

The session controls the content of the overlays and may have replaced any folder by a link. So each entry is opened
from a descriptor of its folder (linux/storage/beneath.py).
"""

import contextlib
import os
import stat
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.linux.storage.deep import remove
from waypoint.upper import copying
from waypoint.upper.views import READ_FOLDER, Entry, Views, candidates, pair


class Rewound(NamedTuple):
    """`changed`: the number of changed entries. `written_bytes`: how much content was copied."""

    changed: int
    written_bytes: int


def rewind(present_upper: str, wanted_upper: str, views: Views, *, keep: frozenset[str]) -> Rewound:
    """Make `views.present` like `views.wanted`.

    `present_upper`, `wanted_upper`: the upper directories of the two views. `keep`: paths, relative to the view, that
    stay as they are, with the folders above them. A changed file is replaced by a new one, so processes keep their open
    old file. After an OSError a part of the entries is changed; none if there are more than MOST_ENTRIES.
    """
    job = _Job(views, keep, {}, [])
    folders: list[str] = []
    count = 0
    for candidate in candidates(wanted_upper, present_upper, lambda path: not job.keeps(path)):
        folders.append(candidate.path)
        if not candidate.is_same:
            count += _bring(candidate.path, job, deep=candidate.is_whole)
    for path in reversed(folders):  # changing a folder's entries has changed the folder's times
        with pair(path, views) as (source, target):
            if source is not None and target is not None:
                facts = source.look()
                if facts is not None and stat.S_ISDIR(facts.st_mode):
                    copying.take_times(source, target)
    return Rewound(count, sum(job.written))


class _Job(NamedTuple):
    """`links`: for files with several hard links, by device and inode, the path in the present view of the first copy.
    `written`: the sizes of the copied files.
    """

    views: Views
    keep: frozenset[str]
    links: dict[tuple[int, int], str]
    written: list[int]

    def keeps(self, path: str) -> bool:
        return path in self.keep or any(path.startswith(f"{kept}/") for kept in self.keep)


def _bring(path: str, job: _Job, *, deep: bool) -> int:
    """Make the entry `path` of the present view like the entry of the wanted view; with `deep` also the content of a
    folder. Return the number of changed entries.
    """
    count, above = 0, list[str]()
    waiting = [path]
    # No recursion and no open descriptors: the session chooses how deep its folders are.
    while waiting:
        path = waiting.pop()
        while above and not path.startswith(f"{above[-1]}/"):
            _take_folder_attributes(above.pop(), job.views)
        step = _Step(0) if job.keeps(path) else _bring_one(path, job, deep=deep)
        count += step.changed
        if step.names is not None:
            above.append(path)
            waiting += [f"{path}/{name}" for name in sorted(step.names, reverse=True)]
        deep = True
    for folder in reversed(above):
        _take_folder_attributes(folder, job.views)
    return count


class _Step(NamedTuple):
    """`names`: entries of a folder still to be compared, before the folder's attributes; None: no folder."""

    changed: int
    names: set[str] | None = None


def _bring_one(path: str, job: _Job, *, deep: bool) -> _Step:
    with pair(path, job.views) as (source, target):
        if target is None:  # an earlier step has made the folder above missing, or a link
            return _Step(0)
        wanted, present = source.look() if source is not None else None, target.look()
        keeps_below = any(kept.startswith(f"{path}/") for kept in job.keep)
        if keeps_below and (wanted is None or not stat.S_ISDIR(wanted.st_mode)):
            return _Step(0)
        if source is None or wanted is None:
            if present is not None:
                remove(target.folder, target.name)
            return _Step(int(present is not None))
        if not stat.S_ISDIR(wanted.st_mode):
            _replace(source, target, (wanted, present), job, path)
            return _Step(1)
        if present is None or not stat.S_ISDIR(present.st_mode):
            if present is not None:
                os.unlink(target.name, dir_fd=target.folder)
            os.mkdir(target.name, dir_fd=target.folder)
            return _fill(source, target, job, path)
        names: set[str] = set()
        if deep:
            with source.opened(READ_FOLDER) as one, target.opened(READ_FOLDER) as other:
                names.update(os.listdir(one), os.listdir(other))
    return _Step(1, names)


def _fill(source: Entry, target: Entry, job: _Job, path: str) -> _Step:
    """Copy the files of the folder `source`, at `path` of the wanted view, into the new, empty folder `target`. The
    result contains the subfolders, which are not copied. This makes few system calls for each file, because a base has
    tens of thousands of files, and the session is frozen meanwhile.
    """
    count, folders = 1, set[str]()
    with source.opened(READ_FOLDER) as one, target.opened(READ_FOLDER) as other, os.scandir(one) as found:
        for item in found:
            if job.keeps(f"{path}/{item.name}"):
                continue
            facts = item.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                folders.add(item.name)
                continue
            _make(Entry(one, item.name), Entry(other, item.name), facts, job, f"{path}/{item.name}")
            count += 1
    return _Step(count, folders)


def _take_folder_attributes(path: str, views: Views) -> None:
    with pair(path, views) as (source, target):
        if source is not None and target is not None and (wanted := source.look()) is not None:
            copying.take_attributes(source, target, wanted)


def _replace(
    source: Entry, target: Entry, facts: tuple[os.stat_result, os.stat_result | None], job: _Job, path: str
) -> None:
    """Replace `target`, at `path`, by a copy of `source`, which is no folder. Atomic unless `target` is a folder."""
    wanted, present = facts
    aside = target._replace(name=f".waypoint-{os.getpid()}-{wanted.st_ino}")
    try:
        _make(source, aside, wanted, job, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside.name, dir_fd=aside.folder)
        raise
    if present is not None and stat.S_ISDIR(present.st_mode):
        remove(target.folder, target.name)
    os.rename(aside.name, target.name, src_dir_fd=aside.folder, dst_dir_fd=target.folder)


def _make(source: Entry, target: Entry, wanted: os.stat_result, job: _Job, path: str) -> None:
    """Make `target`, which is missing, a copy of `source`, which is no folder and lies at `path` of its view."""
    key = (wanted.st_dev, wanted.st_ino)
    if wanted.st_nlink > 1 and key in job.links:
        with beneath.parent_of(job.views.present, job.links[key]) as (folder, name):
            os.link(name, target.name, src_dir_fd=folder, dst_dir_fd=target.folder, follow_symlinks=False)
        return
    copying.copy(source, target, wanted)
    if stat.S_ISREG(wanted.st_mode):
        job.written.append(wanted.st_size)
    if wanted.st_nlink > 1:
        job.links[key] = path
