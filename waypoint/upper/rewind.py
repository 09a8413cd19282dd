"""Restoring the files of a mounted overlay to the content of a sealed upper tree over the same base.

The changes are written through the mount: the upper directory of a mounted overlay must not be written to directly
(overlayfs.rst, "Changes to underlying filesystems"). Only paths that have an entry in one of the two upper directories
can differ, so no others are compared. Nobody else may write to the overlay meanwhile.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from typing import NamedTuple

_OPAQUE = "trusted.overlay.opaque"
_REDIRECT = "trusted.overlay.redirect"
_COPY_BYTES = 1 << 20


class Views(NamedTuple):
    """Two mounted overlays over one base. `wanted` shows the content to restore; `present` is the one to change."""

    wanted: str
    present: str


def rewind(present_upper: str, wanted_upper: str, views: Views, *, keep: frozenset[str]) -> int:
    """Make `views.present` like `views.wanted`; return how many entries were changed.

    `present_upper`, `wanted_upper`: the upper directories of the two views. `keep`: paths, relative to the view, that
    stay as they are. A changed file is replaced by a new one, so processes keep the old file that they have open.
    Raises OSError; a part of the entries is changed then.
    """
    present, wanted = dict(_entries(present_upper)), dict(_entries(wanted_upper))
    links: dict[tuple[int, int], str] = {}
    folders: list[str] = []
    count, whole = 0, ""
    for path in sorted({*present, *wanted}):
        if path in keep or any(path.startswith(f"{kept}/") for kept in keep):
            continue
        if whole and path.startswith(f"{whole}/"):
            continue  # already done: `_bring` has handled the folder `whole` with all its content
        one, other = present.get(path), wanted.get(path)
        folders.append(path)
        if one is not None and one == other and not one.whole:
            continue
        deep = any(entry is not None and entry.whole for entry in (one, other))
        count += _bring(path, views, links, deep=deep)
        whole = path if deep else whole
    for path in reversed(folders):  # changing a folder's entries has changed the folder's times
        facts = _look(f"{views.wanted}/{path}")
        if facts is not None and stat.S_ISDIR(facts.st_mode):
            _take_times(f"{views.wanted}/{path}", f"{views.present}/{path}")
    return count


class _Entry(NamedTuple):
    """The facts by which an entry of an upper directory is compared: a snapshot keeps them for an unchanged file.

    `whole`: the entry hides the base's content below its path (an opaque or moved folder, a whiteout), so everything
    below it must be compared, not only paths with an entry.
    """

    whole: bool
    inode: int
    mode: int
    owner: tuple[int, int]
    changed_ns: int


def _entries(upper: str) -> Iterator[tuple[str, _Entry]]:
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(f"{upper}/{folder}") as found:
            for item in found:
                path = f"{folder}{item.name}"
                facts = item.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(facts.st_mode)
                whole = _stands_alone(f"{upper}/{path}") if is_folder else _is_whiteout(facts)
                if is_folder and not whole:
                    waiting.append(f"{path}/")
                # A folder's ctime changes with its entries, which are compared by themselves.
                changed = 0 if is_folder else facts.st_ctime_ns
                owner = (facts.st_uid, facts.st_gid)
                yield path, _Entry(whole, facts.st_ino, facts.st_mode, owner, changed)


def _is_whiteout(facts: os.stat_result) -> bool:
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0


def _stands_alone(folder: str) -> bool:
    """True if the folder hides the base's folder at its path (opaque) or shows another one (redirect)."""
    return bool({_OPAQUE, _REDIRECT} & set(os.listxattr(folder, follow_symlinks=False)))


def _bring(path: str, views: Views, links: dict[tuple[int, int], str], *, deep: bool) -> int:
    """Make `path` in the present view like the wanted one, with `deep` its content too; return the count of changes."""
    source, target = f"{views.wanted}/{path}", f"{views.present}/{path}"
    wanted, present = _look(source), _look(target)
    if wanted is None:
        return _remove(target) if present is not None else 0
    if not stat.S_ISDIR(wanted.st_mode):
        _replace(source, target, wanted, links, is_folder=present is not None and stat.S_ISDIR(present.st_mode))
        return 1
    if present is None or not stat.S_ISDIR(present.st_mode):
        if present is not None:
            os.unlink(target)
        os.mkdir(target)
        deep = True
    count = 1
    if deep:
        names = {*os.listdir(source), *os.listdir(target)}
        count += sum(_bring(f"{path}/{name}", views, links, deep=True) for name in sorted(names))
    _take_attributes(source, target, wanted)
    return count


def _look(path: str) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.lstat(path)
    return None


def _remove(target: str) -> int:
    if stat.S_ISDIR(os.lstat(target).st_mode):
        shutil.rmtree(target)
    else:
        os.unlink(target)
    return 1


def _replace(
    source: str, target: str, wanted: os.stat_result, links: dict[tuple[int, int], str], *, is_folder: bool
) -> None:
    """Replace `target` by a copy of `source`, which is no folder. Atomic unless `target` is a folder (`is_folder`).

    `links`: by device and inode, where files with several hard links were copied to.
    """
    aside = f"{os.path.dirname(target)}/.waypoint-{os.getpid()}-{wanted.st_ino}"
    key = (wanted.st_dev, wanted.st_ino)
    if wanted.st_nlink > 1 and key in links:
        os.link(links[key], aside, follow_symlinks=False)
    else:
        _copy(source, aside, wanted)
        _take_attributes(source, aside, wanted)
        links[key] = target
    if is_folder:
        shutil.rmtree(target)
    os.rename(aside, target)


def _copy(source: str, target: str, wanted: os.stat_result) -> None:
    if stat.S_ISLNK(wanted.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(wanted.st_mode):
        _copy_content(source, target, wanted.st_size)
    else:  # FIFO or socket; a session cannot make device nodes
        os.mknod(target, stat.S_IFMT(wanted.st_mode) | 0o600, wanted.st_rdev)


def _copy_content(source: str, target: str, size: int) -> None:
    """Copy a file's content. Holes stay holes."""
    origin = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            place = 0
            while place < size:
                try:
                    place = os.lseek(origin, place, os.SEEK_DATA)
                except OSError:  # ENXIO: a hole up to the end
                    break
                data = os.pread(origin, _COPY_BYTES, place)
                place += os.pwrite(fd, data, place)
        finally:
            os.close(fd)
    finally:
        os.close(origin)


def _take_attributes(source: str, target: str, wanted: os.stat_result) -> None:
    os.chown(target, wanted.st_uid, wanted.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(wanted.st_mode):
        os.chmod(target, stat.S_IMODE(wanted.st_mode))
        kept = set(os.listxattr(source, follow_symlinks=False))
        for name in set(os.listxattr(target, follow_symlinks=False)) - kept:
            os.removexattr(target, name, follow_symlinks=False)
        for name in kept:
            os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
    _take_times(source, target)


def _take_times(source: str, target: str) -> None:
    facts = os.lstat(source)
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns), follow_symlinks=False)
