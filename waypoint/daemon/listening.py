"""The control socket's name in the file system: making it with the right owner and mode, and finding out whether a
process listens on it.

Part of the supervisor, which must stay small: nothing heavy may be imported here.
"""

import contextlib
import json
import os
import socket

from waypoint.linux.storage import files
from waypoint.model.paths import (
    RUNTIME,
    RUNTIME_LINK,
    RUNTIME_MODE,
    WITHOUT_ROOT,
    config_path,
    home_id,
    runtime_folder,
    socket_path,
)

BACKLOG = 512


def make_runtime_folder(home: str, given: str = "") -> None:
    """Make /run/waypoint and the home's folder in it, mode 0711: other users may reach the socket but not list the
    folders. A home without root has its folder below that of its user, mode 0700. `given`: the value of
    XDG_RUNTIME_DIR.

    Raises OSError; PermissionError if one of them belongs to another user or others may write to it.
    """
    above, mode = RUNTIME, RUNTIME_MODE
    if is_without_root(home):
        above, mode = _own_runtime(home, given), 0o700
    for folder in (above, runtime_folder(home)):
        files.make_folder(folder, mode)
        found = os.lstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o170022 != 0o040000:
            raise PermissionError(1, "not a folder that only this user can write to", folder)


def is_without_root(home: str) -> bool:
    """Whether the home's config.json says that its daemon runs as this process's user, who is not root."""
    try:
        return _config(home).get(WITHOUT_ROOT) == os.geteuid() != 0
    except ValueError:  # `listen` reports it
        return False


def _own_runtime(home: str, given: str) -> str:
    """Choose the folder above the home's runtime folder, and note it in the home. The choice stays as long as the
    folder exists, whatever the caller's environment: a session may run with it.
    """
    link, uid = f"{home}/{RUNTIME_LINK}", os.geteuid()
    if os.path.isdir(link) and os.stat(link).st_uid == uid:
        return os.path.dirname(os.readlink(link))
    is_ours = given.startswith("/") and os.path.isdir(given) and os.stat(given).st_uid == uid
    above = f"{given}/waypoint" if is_ours else f"/tmp/waypoint-{uid}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(f"{above}/{home_id(home)}", link)
    return above


def listen(home: str) -> socket.socket:
    """Make a new listening socket under the socket's name; an old socket with that name is removed. The caller must
    hold the supervisor's lock.

    `owner_uid` and `group_gid` in config.json say who may connect; nobody can before owner and mode are set. Raises
    OSError, ValueError for a broken config.json.
    """
    path = socket_path(home)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    owner, group = _who_may_connect(home)
    os.chown(path, owner, group if group is not None else -1)
    os.chmod(path, 0o660 if group is not None else 0o600)
    listener.listen(BACKLOG)
    return listener


def named_socket(home: str) -> tuple[int, int] | None:
    """The socket that has the control socket's name now: its device and inode. None if nothing has the name.

    No other socket gets the same numbers as long as a process has this socket open, even if the name is removed.
    """
    try:
        found = os.lstat(socket_path(home))
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def remove_name(home: str, mine: tuple[int, int] | None) -> None:
    """Remove the control socket's name, if it is still that of the socket `mine`, and not of a later supervisor's."""
    if mine is not None and named_socket(home) == mine:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path(home))


def is_served(home: str) -> bool:
    """True if a process listens on the home's socket. That process need not be answering."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # noqa: FBT003 - its only form
        try:
            probe.connect(socket_path(home))
        except BlockingIOError:  # the backlog is full
            return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True


def _who_may_connect(home: str) -> tuple[int, int | None]:
    """The ids of owner and group (None: no group) of the socket. Raises ValueError for a broken config.json."""
    config = _config(home)
    owner, group = config.get("owner_uid"), config.get("group_gid")
    return (owner if isinstance(owner, int) else os.geteuid()), (group if isinstance(group, int) else None)


def _config(home: str) -> dict[str, object]:
    try:
        config = json.loads(files.read_own(config_path(home)))
    except FileNotFoundError:
        return {}
    if not isinstance(config, dict):
        raise ValueError(f"{home}/config.json is not a JSON object")
    return config
