"""An upper directory over a lower one, read as an overlay shows the two, without mounting anything.

What is in the upper directory is the session's, which may be running: no link is followed, and what vanishes meanwhile
is missing. The marks are those of overlayfs.rst ("whiteouts and opaque directories", "redirect_dir").
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from waypoint.linux.calls import powers
from waypoint.linux.storage import beneath, mounts
from waypoint.linux.storage.access import Looking
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.paths import OWN_FOLDER, RUN_FOLDER
from waypoint.upper import layout
from waypoint.upper.changes import changed_targets

OWN = frozenset({OWN_FOLDER, RUN_FOLDER, f"{RUN_FOLDER.partition('/')[0]}/lock", "dev", "proc", "sys"})
"""Below the root of a session, what is Waypoint's or the kernel's: no change of the session's."""
EMPTY = frozenset({RUN_FOLDER.partition("/")[0]})
"""Below the root of a session, folders that begin empty, whatever the base has there."""
VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
"""Errors for a name that somebody has removed or replaced meanwhile."""
MOST_PATH = 16_384
"""The longest path that is followed, in characters: a session chooses how deep its folders are."""

_READ = os.O_RDONLY | os.O_DIRECTORY
_MANY = 8  # names of a folder from which on it is cheaper to list the other side's folder than to ask for each


class Stack(NamedTuple):
    """One mount of a session. `upper`, `lower`: descriptors of the two folders; -1: there is none. `point`: the mount
    point. `skipped`: paths below it that are not looked at. `empty`: paths of folders whose content in `lower` does not
    count. Both are relative.
    """

    upper: int
    lower: int
    point: str = "/"
    skipped: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()

    def without_upper(self) -> "Stack":
        """What a session that has changed nothing sees."""
        return self._replace(upper=-1)


class Spot(NamedTuple):
    """Where something lies: a descriptor of a folder, and the path below it. To be opened by linux/storage/beneath."""

    root: int
    path: str


class Parts(NamedTuple):
    """A folder as a stack shows it: its paths in the upper and in the lower directory; None: it has no part there."""

    upper: str | None
    lower: str | None


NOWHERE = Parts(None, None)


class Marks(NamedTuple):
    """What overlayfs has noted about a folder of an upper directory. `redirect`: as it is written; "": none."""

    is_opaque: bool = False
    redirect: str = ""


class Shown(NamedTuple):
    """A name as a stack shows it. `is_upper`: it lies in the upper directory."""

    facts: os.stat_result
    is_upper: bool


class FolderParts(NamedTuple):
    """An open folder of a stack. `uppers`: what the upper directory has in it, None for a whiteout. `upper`, `lower`:
    descriptors, -1 for none. `lowers`: the names in the lower one; None: they were not listed.
    """

    parts: Parts
    upper: int
    lower: int
    uppers: dict[str, os.stat_result | None]
    lowers: frozenset[str] | None

    def find(self, name: str) -> Shown | None:
        if name in self.uppers:
            facts = self.uppers[name]
            return None if facts is None else Shown(facts, is_upper=True)
        if self.lower < 0 or (self.lowers is not None and name not in self.lowers):
            return None
        try:
            return Shown(os.stat(name, dir_fd=self.lower, follow_symlinks=False), is_upper=False)
        except OSError as error:
            if error.errno not in VANISHED:
                raise
            return None

    def folder_of(self, found: Shown) -> int:
        """The descriptor of the folder in which the name was found."""
        return self.upper if found.is_upper else self.lower

    def names_below(self, looking: Looking) -> list[str]:
        """The names in the lower one, if whoever is `looking` may read it; else none."""
        if self.lower < 0:
            return []
        try:
            with looking():
                fd = os.open(".", _READ | os.O_CLOEXEC, dir_fd=self.lower)
        except PermissionError:
            return []
        try:
            return _names(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def opened_parts(stack: Stack, parts: Parts) -> Iterator[FolderParts]:
    """The folder `parts` of the stack for the `with` block. A part that has vanished is missing. Raises OSError."""
    with contextlib.ExitStack() as held:
        upper, lower = _opened(held, stack.upper, parts.upper), _opened(held, stack.lower, parts.lower)
        uppers = dict(_entries(upper)) if upper >= 0 else {}
        is_listed = lower >= 0 and len(uppers) >= _MANY
        yield FolderParts(parts, upper, lower, uppers, frozenset(_names(lower)) if is_listed else None)


def _opened(held: contextlib.ExitStack, root: int, path: str | None) -> int:
    if root < 0 or path is None:
        return -1
    if len(path) > MOST_PATH:
        raise OSError(errno.ENAMETOOLONG, f"a path of more than {MOST_PATH} characters", f"{path[:40]}...")
    try:
        fd = beneath.open_beneath(root, path, _READ)
    except OSError as error:
        if error.errno not in VANISHED:
            raise
        return -1
    held.callback(os.close, fd)
    return fd


def _entries(folder: int) -> Iterator[tuple[str, os.stat_result | None]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError as error:
                if error.errno not in VANISHED:
                    raise
                continue
            is_whiteout = stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0
            yield entry.name, None if is_whiteout else facts


def _names(folder: int) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def read_marks(folder: int, name: str) -> Marks:
    """The marks of the folder `name` in the folder `folder` of an upper directory. Raises OSError."""
    path = f"{beneath.name_of(folder)}/{name}"
    opaque, redirect = powers.overlay_mark("opaque"), powers.overlay_mark("redirect")
    try:
        names = os.listxattr(path, follow_symlinks=False)
        moved = os.getxattr(path, redirect, follow_symlinks=False) if redirect in names else b""
    except OSError as error:
        if error.errno not in (*VANISHED, errno.ENOTSUP, errno.ENODATA):
            raise
        return Marks()
    return Marks(opaque in names, os.fsdecode(moved))


def below(folder: str, name: str) -> str:
    """The path of `name` in the folder at the relative path `folder`."""
    return f"{folder}/{name}" if folder else name


def parts_of(above: Parts, name: str, found: Shown | None, marks: Marks, stack: Stack) -> Parts:
    """Where the folder `name` in the folder `above` has its parts, by what was found there."""
    if found is None or not stat.S_ISDIR(found.facts.st_mode):
        return NOWHERE
    lower = None if above.lower is None else below(above.lower, name)
    if found.is_upper and marks.is_opaque:
        lower = None
    elif found.is_upper and marks.redirect:
        moved = marks.redirect
        if moved.startswith("/"):
            lower = moved.lstrip("/")
        else:
            lower = None if above.lower is None else below(above.lower, moved)
    if lower in stack.empty:
        lower = None
    upper = below(above.upper, name) if found.is_upper and above.upper is not None else None
    return Parts(upper, lower)


@contextlib.contextmanager
def opened_stacks(
    tree: str, base: str, hidden: Iterable[str] = (), skipped: Iterable[str] = ()
) -> Iterator[list[Stack]]:
    """The stacks of a session or capture with the upper tree at the path `tree` over `base`, as far as it has changed
    something in them, for the `with` block; sorted by mount point. `hidden`: absolute paths in the session of folders
    that begin empty, besides EMPTY, such as the homes of Waypoint; `skipped`: of what is no part of the base, besides
    OWN, such as the targets of binds. What of the base has been unmounted is empty.

    Needs the caller's mount namespace to show the base. Raises OSError.
    """
    with opened_pairs("", tree, base, hidden, skipped) as pairs:
        yield [other for _, other in pairs]


@contextlib.contextmanager
def opened_pairs(
    one: str, other: str, base: str, hidden: Iterable[str] = (), skipped: Iterable[str] = ()
) -> Iterator[list[tuple[Stack, Stack]]]:
    """As `opened_stacks`, of two trees over one base, for each mount that one of them has changed something in. `one`
    is "" for the base as it is.
    """
    targets = {tree: changed_targets(tree) if tree else set() for tree in (one, other)}
    points = targets[one] | targets[other]
    with contextlib.ExitStack() as held:
        found = []
        for point in sorted(points):
            lower = _open_base(held, f"{base.rstrip('/')}{point}")
            bounds = bounds_of(point, points, hidden, skipped)
            before, now = (
                Stack(
                    held.enter_context(open_folder(layout.upper_of(tree, point))) if point in targets[tree] else -1,
                    lower,
                    point,
                    *bounds,
                )
                for tree in (one, other)
            )
            found.append((before, now))
        yield found


def bounds_of(
    target: str, targets: set[str], hidden: Iterable[str], skipped: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """`Stack.skipped` and `Stack.empty` of the mount at `target`, of a session that has mounts at `targets`."""
    above = target.rstrip("/") + "/"
    left_out = {one.removeprefix(above) for one in (*targets, *skipped) if one.startswith(above) and one != above}
    begins = {one.removeprefix(above) for one in hidden if one.startswith(above)}
    is_root = target == "/"
    return frozenset(left_out | (OWN if is_root else set())), frozenset(begins | (EMPTY if is_root else set()))


def _open_base(held: contextlib.ExitStack, path: str) -> int:
    """A descriptor of the folder `path` without the mounts below it, as an overlay's lower layer has none; with them
    where the kernel gives an ordinary user no such view. -1 if there is no such folder.
    """
    try:
        fd = mounts.clone(path)
    except FileNotFoundError:
        return -1
    except OSError:
        try:
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return -1
    held.callback(os.close, fd)
    return fd
