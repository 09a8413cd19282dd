"""Checking that only root and this process's user can replace a path: whoever can change a folder of a path can put
another file in its place.

Each part of the path is opened from the descriptor of the part before, so that the folder checked is the folder used.
Sources: path_resolution(7), open(2) on O_PATH, sticky bit in inode(7).

Part of the supervisor, which must stay small: nothing heavy may be imported here.
"""

import errno
import os
import stat

from waypoint.linux.calls import abilities
from waypoint.model.errors import HostLacks
from waypoint.model.paths import quoted

_NOBODY = 65_534  # the kernel's overflow id
_MAX_LINKS = 40  # the kernel's own limit on symbolic links in one path: path_resolution(7)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ELSEWHERE = (
    "use a folder that only root can change, with all folders above it: "
    "waypoint --home DIR setup (mv moves a home there)"
)


def check_home(home: str, *, above_only: bool = False) -> None:
    """Raise HostLacks if a user other than root and this process's user could replace the home or a file in it. A
    missing home passes. `above_only`: check only the folders above the home.

    Every folder and link of the path must belong to one of these two users, and only they may write to a folder of the
    path, unless it has the sticky bit, as /tmp has. Only they may write to the home, and everything in it must belong
    to them.
    """
    folder = -1
    try:
        folder = _walk(home)
        if not above_only:
            _check(home, home, os.fstat(folder), may_be_sticky=False)
            _check_content(home, folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    finally:
        if folder >= 0:
            os.close(folder)


def _walk(home: str) -> int:
    """Check the folders and links above `home`, but not `home` itself; return a descriptor of `home`."""
    at, rest, links = "/", _parts(os.path.join(os.getcwd(), home)), 0
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while rest:
            _check(home, at, os.fstat(here), may_be_sticky=True)
            part = rest.pop()
            at = os.path.normpath(os.path.join(at, part))
            found = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            try:
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    links += 1
                    if links > _MAX_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), home)
                    _check(home, at, os.fstat(found), may_be_sticky=True)
                    target = os.readlink("", dir_fd=found)
                    rest += _parts(target)
                    at = "/" if target.startswith("/") else os.path.dirname(at)
                    following = os.open("/", os.O_PATH | os.O_CLOEXEC) if target.startswith("/") else os.dup(here)
                    os.close(found)
                    found = following
            except BaseException:
                os.close(found)
                raise
            os.close(here)
            here = found
    except BaseException:
        os.close(here)
        raise
    return here


def _root() -> int:
    """The id that root's files have here. In the user namespace of a home without root, every user but its own has the
    id nobody: the supervisor has checked the path before it entered that namespace.
    """
    return 0 if abilities.own().owners else _NOBODY


def _parts(path: str) -> list[str]:
    """The parts of `path`, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _check_content(home: str, folder: int) -> None:
    if not stat.S_ISDIR(os.fstat(folder).st_mode):
        return
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        for name in os.listdir(readable):
            try:
                _check_owner(home, f"{home}/{name}", os.lstat(name, dir_fd=readable))
            except FileNotFoundError:  # removed meanwhile
                continue
    finally:
        os.close(readable)


def _check(home: str, path: str, facts: os.stat_result, *, may_be_sticky: bool) -> None:
    _check_owner(home, path, facts)
    is_open = facts.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(facts.st_mode)
    if is_open and not (may_be_sticky and facts.st_mode & stat.S_ISVTX):
        said = f"others may write to {path} (mode {stat.S_IMODE(facts.st_mode):o}), so they could replace it"
        raise HostLacks("use", f"the home {home}", said, f"remove this permission: chmod go-w {quoted(path)}")


def _check_owner(home: str, path: str, facts: os.stat_result) -> None:
    if facts.st_uid not in (_root(), os.geteuid()):
        said = f"{path} belongs to user {facts.st_uid}, who could change or replace it"
        raise HostLacks("use", f"the home {home}", said, _ELSEWHERE)
