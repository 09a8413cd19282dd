"""Restoring the files of a mounted overlay to the content of a sealed upper tree over the same base.

Changes are written through the mount, because the upper directory of a mounted overlay must not be written to directly
(overlayfs.rst, "Changes to underlying filesystems"). Only the entries that differ (rewind_plan.py) are touched. Nobody
else may write to the overlay meanwhile.

The session controls the content of the overlays and may have replaced any folder by a link. So each entry is opened
from a descriptor of its folder (linux/storage/beneath.py).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from waypoint.linux.storage import beneath
from waypoint.linux.storage.deep import remove
from waypoint.upper import copying
from waypoint.upper.comparing import compare_one, look
from waypoint.upper.rewind_plan import Plan
from waypoint.upper.views import READ_FOLDER, Entry, Pairs, Views

_IN_USE = (errno.ETXTBSY, errno.EWOULDBLOCK, errno.EPERM)


class Rewound(NamedTuple):
    """`changed`: the number of changed entries. `written_bytes`: how much content was copied."""

    changed: int
    written_bytes: int


def rewind(
    plan: Plan,
    views: Views,
    *,
    keep: frozenset[str],
    in_use: Callable[[str], bool] = lambda _: True,
    on_step: Callable[[], object] = lambda: None,
) -> Rewound:
    """Make `views.present` like `views.wanted`.

    `plan`: how they differ; it may name entries that do not. `keep`: paths, relative to the view, that stay as they
    are, with the folders above them. `in_use`: whether a process uses the file at a path; then it is replaced by a new
    one if its content differs, so the process keeps the old one. Otherwise it may be written to, which is four times as
    fast. If only its attributes differ, it stays. `on_step` is called for each difference. After an OSError a part of
    the entries is changed.
    """
    with Pairs(views, across=True) as pairs:
        job = _Job(views, pairs, keep, {}, [])
        _note_links(plan.anchors, job)
        folders = dict[str, bool]()  # those whose times this may change; whether their other attributes may differ
        count = 0
        for path, how, is_content in plan.differences:
            on_step()
            folders.setdefault(path.rpartition("/")[0], False)
            if is_content and not in_use(path) and _overwrite(path, job):
                count += 1
                continue
            wanted, present = look(pairs.at(path)) if how == "attributes" else (None, None)
            if wanted is None or present is None or stat.S_IFMT(wanted.st_mode) != stat.S_IFMT(present.st_mode):
                count += _bring(path, job)
            elif stat.S_ISDIR(wanted.st_mode):
                folders[path] = True
            else:
                count += _take_attributes(path, job)
        for path in sorted(folders, key=lambda one: one.count("/"), reverse=True):
            if path:
                count += _take_folder_attributes(path, job, only_times=not folders[path])
    return Rewound(count, sum(job.written))


class _Job(NamedTuple):
    """`links`: for files with several hard links, by device and inode, the path in the present view of the first copy.
    `written`: the sizes of the copied files.
    """

    views: Views
    pairs: Pairs
    keep: frozenset[str]
    links: dict[tuple[int, int], str]
    written: list[int]

    def keeps(self, path: str) -> bool:
        return path in self.keep or any(path.startswith(f"{kept}/") for kept in self.keep)


def _note_links(anchors: list[str], job: _Job) -> None:
    for path in anchors:
        wanted, present = look(job.pairs.at(path))
        if wanted is not None and present is not None:
            job.links[wanted.st_dev, wanted.st_ino] = path


def _bring(path: str, job: _Job) -> int:
    """Make the entry `path` of the present view like the entry of the wanted view, with all its content. Return the
    number of changed entries.
    """
    count, above = 0, list[str]()
    waiting = [path]
    # No recursion and no open descriptors: the session chooses how deep its folders are.
    while waiting:
        path = waiting.pop()
        while above and not path.startswith(f"{above[-1]}/"):
            _take_folder_attributes(above.pop(), job)
        step = _Step(0) if job.keeps(path) else _bring_one(path, job)
        count += step.changed
        if step.names is not None:
            above.append(path)
            waiting += [f"{path}/{name}" for name in sorted(step.names, reverse=True)]
    for folder in reversed(above):
        _take_folder_attributes(folder, job)
    return count


class _Step(NamedTuple):
    """`names`: entries of a folder still to be compared, before the folder's attributes; None: no folder."""

    changed: int
    names: set[str] | None = None


def _bring_one(path: str, job: _Job) -> _Step:
    source, target = job.pairs.at(path)
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
    with source.opened(READ_FOLDER) as one, target.opened(READ_FOLDER) as other:
        return _Step(1, {*os.listdir(one), *os.listdir(other)})


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


def _overwrite(path: str, job: _Job) -> bool:
    source, target = job.pairs.at(path)
    if source is None or target is None:
        return False
    try:
        job.written.append(copying.overwrite(source, target))
    except OSError as error:
        if error.errno not in _IN_USE:
            raise
        return False
    return True


def _take_attributes(path: str, job: _Job) -> int:
    source, target = job.pairs.at(path)
    if source is None or target is None or (wanted := source.look()) is None:
        return 0
    copying.take_attributes(source, target, wanted)
    return 1


def _take_folder_attributes(path: str, job: _Job, *, only_times: bool = False) -> int:
    """Give the folder its attributes, if it is a folder in both views. Returns 1 if more than its times differed."""
    source, target = sides = job.pairs.at(path)
    wanted, present = look(sides)
    if source is None or target is None or wanted is None or present is None or not stat.S_ISDIR(present.st_mode):
        return 0
    if not stat.S_ISDIR(wanted.st_mode):
        return 0
    if not only_times and compare_one(sides, wanted, present) is not None:
        copying.take_attributes(source, target, wanted)
        return 1
    if wanted.st_mtime_ns != present.st_mtime_ns:
        copying.take_times(source, target)
    return 0


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
