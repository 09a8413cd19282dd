"""Whether a path is in the hands of this process's user and root alone: whoever can change one folder on the way to a
file can put another file in its place.

The path is walked part by part, each opened from the descriptor of the one before, so that what has been looked at is
what is walked through. Sources: path_resolution(7), open(2) on O_PATH, sticky bit in inode(7).

Part of the supervisor, which must stay small: nothing heavy may be imported here.
"""

import errno
import os
import stat

from waypoint.model.errors import HostLacks
from waypoint.model.paths import quoted

_MAX_LINKS = 40  # as path_resolution(7)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ELSEWHERE = (
    "use a folder that only root can change, like all above it: waypoint --home DIR setup (mv brings a home there)"
)


def check_home(home: str, *, above_only: bool = False) -> None:
    """Raise HostLacks if somebody other than root and this process's user could put another thing in the place of the
    home, or of a file in it. What is not there belongs to nobody. `above_only`: judge only what leads to the home.

    In a user namespace without root everything of root's looks like a stranger's: there nothing is judged, since who
    has gone into it has judged before (daemon/own_powers.py).

    Links are followed if they belong to one of the two, as must every folder on the way; others may write to none of
    these but to one with the sticky bit, such as /tmp. To the home itself nobody else may write, and nothing in it may
    belong to others. Raises OSError.
    """
    if not _knows_root():
        return
    folder = -1
    try:
        folder = _walk(home)
        if not above_only:
            _judge(home, home, os.fstat(folder), may_be_sticky=False)
            _judge_content(home, folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    finally:
        if folder >= 0:
            os.close(folder)


def _knows_root() -> bool:
    with open("/proc/self/uid_map") as file:
        return any(line.split()[0] == "0" for line in file)


def _walk(home: str) -> int:
    """A descriptor of `home`, which is not judged itself. Raises HostLacks for what leads to it, OSError."""
    at, rest, links = "/", _parts(os.path.join(os.getcwd(), home)), 0
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while rest:
            _judge(home, at, os.fstat(here), may_be_sticky=True)
            part = rest.pop()
            at = os.path.normpath(os.path.join(at, part))
            found = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            try:
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    links += 1
                    if links > _MAX_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), home)
                    _judge(home, at, os.fstat(found), may_be_sticky=True)
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


def _parts(path: str) -> list[str]:
    """The parts of `path`, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _judge_content(home: str, folder: int) -> None:
    if not stat.S_ISDIR(os.fstat(folder).st_mode):
        return
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        for name in os.listdir(readable):
            try:
                _judge_owner(home, f"{home}/{name}", os.lstat(name, dir_fd=readable))
            except FileNotFoundError:  # removed meanwhile
                continue
    finally:
        os.close(readable)


def _judge(home: str, path: str, facts: os.stat_result, *, may_be_sticky: bool) -> None:
    _judge_owner(home, path, facts)
    is_open = facts.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(facts.st_mode)
    if is_open and not (may_be_sticky and facts.st_mode & stat.S_ISVTX):
        said = f"others may write to {path} (mode {stat.S_IMODE(facts.st_mode):o}), and so put another in its place"
        raise HostLacks("use", f"the home {home}", said, f"take that from them: chmod go-w {quoted(path)}")


def _judge_owner(home: str, path: str, facts: os.stat_result) -> None:
    if facts.st_uid not in (0, os.geteuid()):
        said = f"{path} belongs to user {facts.st_uid}, who could put another in its place"
        raise HostLacks("use", f"the home {home}", said, _ELSEWHERE)
