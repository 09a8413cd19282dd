"""The homes of Waypoint on this machine, which no session gets to see, whoever has set them up."""

import contextlib
import os
import pwd
import stat
from pathlib import Path

from waypoint.launch.ground.base import is_below
from waypoint.linux.storage import beneath, mounts
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.paths import OWN_HOME, RUNTIME, SYSTEM_HOME, config_path
from waypoint.model.records import User

_OWN: set[str] = set()  # the home of this process
_NOTE = "home"  # in a home's runtime folder: where the home lies


def note(home: Path, runtime: Path) -> None:
    """Let the daemons of other homes know of `home`, until the machine is started again; and this one, where nobody
    looks into `runtime`. Raises OSError.
    """
    _OWN.add(str(home))
    (runtime / _NOTE).write_bytes(os.fsencode(home))


def known() -> list[str]:
    """The machine's own home, and those of which a daemon has run since the machine was started."""
    found = {SYSTEM_HOME, *_OWN}
    for place in Path(RUNTIME).glob(f"*/{_NOTE}"):
        with contextlib.suppress(OSError):  # that home was removed meanwhile
            found.add(os.fsdecode(place.read_bytes()))
    return sorted({os.path.realpath(one) for one in found if os.path.isdir(one)})


def hidden_from(user: User, found: list[str] | None = None) -> list[str]:
    """The homes that a session of `user` is not to see: those of `known`, which `found` is if it was called already,
    and this user's own, whose daemon makes no note where other daemons look.
    """
    return sorted({*(known() if found is None else found), *_own(user.uid, user.home)})


def _own(uid: int, user_home: str) -> list[str]:
    """The own home of the user `uid`, if there is one. What lies in `user_home` is this user's choice, so a link in it
    leads nowhere, and only a folder of the user's own is a home: else a user would choose what this process hides.
    """
    path = f"{os.path.realpath(user_home)}/{OWN_HOME}"
    with contextlib.suppress(OSError), open_folder("/") as root, beneath.opened(root, path) as fd:
        config = os.stat(config_path("."), dir_fd=fd, follow_symlinks=False)
        return [path] if os.fstat(fd).st_uid == uid and stat.S_ISREG(config.st_mode) else []
    return []


def shows_one(path: str, user: User) -> bool:
    """Whether a bind of `path` would show something of a home, or of Waypoint's runtime folder, to a session of `user`.
    Looked for are the homes of `hidden_from`, and the own ones of all users that the machine lists. A bind shows the
    file system of `path` alone, not what is mounted below it. Raises OSError if `path` does not exist.
    """
    device, shown = _on_disk(path)
    of_users = (one for entry in pwd.getpwall() for one in _own(entry.pw_uid, entry.pw_dir))
    for place in (RUNTIME, *{*hidden_from(user), *of_users}):
        with contextlib.suppress(FileNotFoundError):  # that home was removed meanwhile
            there, hidden = _on_disk(place)
            on_one = device == there and (is_below(hidden, shown) or is_below(shown, hidden))
            if on_one or is_below(path, place):
                return True
    return False


def _on_disk(path: str) -> tuple[tuple[int, int], str]:
    """The device of the file system on which `path` lies, and the path within this file system. Raises OSError."""
    mount, whole = mounts.holding(path)
    return mount.device, os.path.normpath(os.path.join(mount.root, os.path.relpath(whole, mount.mount_point)))
