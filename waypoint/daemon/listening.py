"""The control socket as a name in the file system: made with the right owner, found stale, or found served.

Part of the supervisor, which must stay small: nothing heavy may be imported here.
"""

import contextlib
import json
import os
import socket

from waypoint.model.paths import RUNTIME, runtime_folder, socket_path

BACKLOG = 512


def make_runtime_folder(home: str) -> None:
    """Others may pass through it to the socket, but not list it. Raises OSError, PermissionError if it is not ours."""
    for folder in (RUNTIME, runtime_folder(home)):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o711)
            os.chmod(folder, 0o711)  # whatever the umask
        found = os.lstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o170022 != 0o040000:
            raise PermissionError(1, "not a folder that only this user can write to", folder)


def listen(home: str) -> socket.socket:
    """Replace what has the socket's name by a new listening socket. The caller holds the supervisor's lock.

    Who may connect is told by `owner_uid` and `group_gid` in config.json. Nobody can before its owner and mode are set.
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


def is_served(home: str) -> bool:
    """Whether some process listens on the socket; it need not answer."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # noqa: FBT003 - its only form
        try:
            probe.connect(socket_path(home))
        except BlockingIOError:  # its backlog is full
            return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True


def _who_may_connect(home: str) -> tuple[int, int | None]:
    """The ids of owner and group (None: no group) of the socket. Raises ValueError for a broken config.json."""
    try:
        with open(f"{home}/config.json", "rb") as file:
            config = json.load(file)
    except FileNotFoundError:
        config = {}
    if not isinstance(config, dict):
        raise ValueError(f"{home}/config.json is not a JSON object")
    owner, group = config.get("owner_uid"), config.get("group_gid")
    return (owner if isinstance(owner, int) else os.geteuid()), (group if isinstance(group, int) else None)
