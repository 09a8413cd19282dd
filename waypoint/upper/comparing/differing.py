"""What differs between two stacks over one base: what a session has changed, or what one capture has and another has
not. Only names with an entry in an upper directory can differ, so a base is looked at only where these are.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.linux.storage.access import Looking
from waypoint.upper.comparing.alike import MOST_READ, How, Side, compared
from waypoint.upper.comparing.stack import (
    NOWHERE,
    FolderParts,
    Marks,
    Parts,
    Shown,
    Spot,
    Stack,
    below,
    opened_parts,
    parts_of,
    read_marks,
)

_NO_MARKS = Marks()


class EntryChange(NamedTuple):
    """A name that differs.

    `path`: as the session sees it, absolute. `was`, `now`: the facts before and after, None if there was or is nothing;
    the owners are those that the session sees. `was_at`, `now_at`: where it lies. `source`: for a folder of the base
    that was moved to where none was, its path before; what is told of names below is what differs from there.
    `is_opaque`: the folder hides what the base has at its path; the names that it hides are told as removed.
    `is_whole`: it is a folder of the base, with all in it, of which nothing else is told.
    """

    path: bytes
    how: How
    was: os.stat_result | None
    now: os.stat_result | None
    was_at: Spot | None = None
    now_at: Spot | None = None
    source: bytes = b""
    is_opaque: bool = False
    is_whole: bool = False


class _Pair(NamedTuple):
    """A folder that is compared. `path`: below the mount point, "" for the root."""

    path: str
    one: Parts
    other: Parts


class _Comparison(NamedTuple):
    """`only`: paths below the mount point that are wanted, none for all."""

    one: Stack
    other: Stack
    only: tuple[str, ...]
    looking: Looking

    def is_wanted(self, path: str) -> bool:
        """Whether something at the path, or below it, may be wanted."""
        return not self.only or any(_is_at(path, one) or _is_at(one, path) for one in self.only)

    def tells(self, path: str) -> bool:
        """Whether what is at the path is wanted."""
        return not self.only or any(_is_at(path, one) for one in self.only)


def changes(stack: Stack, only: Iterable[str] = (), looking: Looking = contextlib.nullcontext) -> Iterator[EntryChange]:
    """What the upper directory of the stack changes of the lower one. As `differing`."""
    return differing(stack.without_upper(), stack, only, looking)


def differing(
    one: Stack, other: Stack, only: Iterable[str] = (), looking: Looking = contextlib.nullcontext
) -> Iterator[EntryChange]:
    """What is in `other` and differs from `one`, sorted by name, a folder before what is in it. A folder
    that is gone is told as a whole, as one name; and so is one of the base that `one` had removed.

    Both are of the same mount point, over the same base. `only`: absolute paths in the session, at or below which it is
    wanted. `looking`: with whose rights content is read, and folders of the base are listed. Raises OSError, such as
    ENAMETOOLONG for a deeper tree than is sensible.
    """
    wanted = _below_point(other.point, only)
    if wanted is None:
        return
    job = _Comparison(one, other, wanted, looking)
    root = _Pair("", Parts("", "" if one.lower >= 0 else None), Parts("", "" if other.lower >= 0 else None))
    yield from _root(job)
    waiting = [iter(_folder(job, root))]
    while waiting:
        for change, pair in waiting[-1]:
            if change is not None:
                yield change
            if pair is not None:
                waiting.append(iter(_folder(job, pair)))
                break
        else:
            waiting.pop()


def _below_point(point: str, only: Iterable[str]) -> tuple[str, ...] | None:
    """The paths of `only` that concern the mount at `point`, below it; () for all of it, None for nothing."""
    found, above = [], point.rstrip("/") + "/"
    for path in only:
        if _is_at(point.strip("/"), path.strip("/")):
            return ()
        if path.startswith(above):
            found.append(path.removeprefix(above).strip("/"))
    return tuple(found) if found or not only else None


def _is_at(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _root(job: _Comparison) -> Iterator[EntryChange]:
    """The change of the mount's own root folder, if there is one."""
    roots = [stack.upper if stack.upper >= 0 else stack.lower for stack in (job.one, job.other)]
    if min(roots) < 0 or roots[0] == roots[1] or job.only:
        return
    one, other = (Side(fd, ".", Shown(os.stat(fd), is_upper=True)) for fd in roots)
    how = compared(one, other, job.looking)
    if how is not None:
        was_at, now_at = (Spot(fd, "") for fd in roots)
        yield EntryChange(os.fsencode(job.other.point), how, one.found.facts, other.found.facts, was_at, now_at)


def _folder(job: _Comparison, pair: _Pair) -> list[tuple[EntryChange | None, _Pair | None]]:
    """What differs in one folder, and the folders in it that are still to be compared; sorted by name."""
    is_whole = pair.one.lower != pair.other.lower
    with opened_parts(job.one, pair.one) as one, opened_parts(job.other, pair.other) as other:
        names = {*one.uppers, *other.uppers}
        if is_whole:
            names.update(one.names_below(job.looking), other.names_below(job.looking))
        found = []
        for name in sorted(names):
            path = below(pair.path, name)
            if path not in job.other.skipped and job.is_wanted(path):
                change, inner = _name(job, path, (one, other), name)
                if change is not None or inner is not None:
                    found.append((change if job.tells(path) else None, inner))
        return found


def _name(
    job: _Comparison, path: str, folders: tuple[FolderParts, FolderParts], name: str
) -> tuple[EntryChange | None, _Pair | None]:
    one, other = folders
    was, now = one.find(name), other.find(name)
    if now is None:
        return (None if was is None else _change(job, path, How.REMOVED, folders, (was, None)), None)
    if not stat.S_ISDIR(now.facts.st_mode):
        how = How.ADDED if was is None else _file(folders, name, was, now, job.looking)
        return (None if how is None else _change(job, path, how, folders, (was, now)), None)
    return _inner_folder(job, path, folders, (was, now))


def _file(folders: tuple[FolderParts, FolderParts], name: str, was: Shown, now: Shown, looking: Looking) -> How | None:
    if not was.is_upper and not now.is_upper and folders[0].parts.lower == folders[1].parts.lower:
        return None
    if was.is_upper and now.is_upper and now.facts.st_size > MOST_READ and _stamp(was) == _stamp(now):
        return None
    one, other = folders
    return compared(Side(one.folder_of(was), name, was), Side(other.folder_of(now), name, now), looking)


def _stamp(found: Shown) -> tuple[int, ...]:
    """What a snapshot keeps of an unchanged file."""
    facts = found.facts
    return facts.st_ino, facts.st_ctime_ns, facts.st_mtime_ns, facts.st_mode, facts.st_size


def _inner_folder(
    job: _Comparison, path: str, folders: tuple[FolderParts, FolderParts], pair: tuple[Shown | None, Shown]
) -> tuple[EntryChange | None, _Pair | None]:
    """As `_name`, of a folder."""
    (was, now), (one, other) = pair, folders
    name = path.rpartition("/")[2]
    was_marks = read_marks(one.upper, name) if was is not None and was.is_upper else _NO_MARKS
    marks = read_marks(other.upper, name) if now.is_upper else _NO_MARKS
    here = parts_of(other.parts, name, now, marks, job.other)
    before = parts_of(one.parts, name, was, was_marks, job.one)
    if was is not None and stat.S_ISDIR(was.facts.st_mode):
        is_same = before == here and before.upper is None
        sides = Side(one.folder_of(was), name, was), Side(other.folder_of(now), name, now)
        how = None if is_same or path in job.other.empty else compared(*sides, job.looking)
        inner = None if is_same else _Pair(path, before, here)
        return (None if how is None else _change(job, path, how, folders, pair, marks), inner)
    how = How.ADDED if was is None else How.RETYPED
    start = NOWHERE
    if marks.redirect:
        start = NOWHERE._replace(lower=here.lower)
    elif name not in one.uppers and one.parts.lower == other.parts.lower:
        here = here._replace(lower=None)  # the base has no folder there
    inner = _Pair(path, start, here) if now.is_upper else None
    if path in job.other.empty:  # it was there, whatever the base has
        return None, inner
    return _change(job, path, how, folders, pair, marks), inner


def _change(
    job: _Comparison,
    path: str,
    how: How,
    folders: tuple[FolderParts, FolderParts],
    pair: tuple[Shown | None, Shown | None],
    marks: Marks = _NO_MARKS,
) -> EntryChange:
    name = path.rpartition("/")[2]
    was, now = pair
    source = ""
    if marks.redirect and how in (How.ADDED, How.RETYPED):
        above = folders[1].parts.lower or ""
        moved = marks.redirect.lstrip("/") if marks.redirect.startswith("/") else below(above, marks.redirect)
        source = f"{job.other.point.rstrip('/')}/{moved}"
    return EntryChange(
        os.fsencode(f"{job.other.point.rstrip('/')}/{path}"),
        how,
        was.facts if was is not None else None,
        now.facts if now is not None else None,
        _spot(job.one, folders[0], name, was),
        _spot(job.other, folders[1], name, now),
        os.fsencode(source) if source else b"",
        marks.is_opaque,
        is_whole=how in (How.ADDED, How.RETYPED) and _is_of_base(now),
    )


def _is_of_base(found: Shown | None) -> bool:
    return found is not None and not found.is_upper and stat.S_ISDIR(found.facts.st_mode)


def _spot(stack: Stack, folder: FolderParts, name: str, found: Shown | None) -> Spot | None:
    if found is None:
        return None
    root, above = (stack.upper, folder.parts.upper) if found.is_upper else (stack.lower, folder.parts.lower)
    return Spot(root, below(above or "", name))
