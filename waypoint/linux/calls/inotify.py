"""The kernel's limits of inotify(7), which all sessions with one owner share."""

import errno
import os

from waypoint.linux.calls import libc

_MOST_TRIED = 4096


def most_instances() -> int:
    """The limit of instances of each user, root included."""
    return _limit("instances")


def most_watches() -> int:
    """The limit of watched files of each user, root included."""
    return _limit("watches")


def can_have(count: int) -> bool:
    """Whether the caller's user can have `count` more instances. Makes them, and closes them. Returns True also if that
    cannot be found out.
    """
    if count > most_instances():
        return False
    made: list[int] = []
    try:
        for _ in range(min(count, _MOST_TRIED)):
            made.append(libc.call("inotify_init1", os.O_CLOEXEC))
    except OSError as error:
        return error.errno != errno.EMFILE or not _can_open()
    finally:
        for fd in made:
            os.close(fd)
    return True


def _can_open() -> bool:
    """Whether this process can open one more file: it gets EMFILE for its own limit, too."""
    try:
        os.close(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _limit(what: str) -> int:
    with open(f"/proc/sys/user/max_inotify_{what}") as file:
        return int(file.read())
