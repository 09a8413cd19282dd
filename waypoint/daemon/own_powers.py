"""How the supervisor of an ordinary user, who has no power over the machine, gets some over a part of it: by a user
namespace of its own, in which it and all that it starts have every capability (user_namespaces(7)).

Part of the supervisor, which must stay small: nothing heavy may be imported here.
"""

import contextlib
import json
import os

from waypoint.model.errors import HostLacks
from waypoint.model.paths import SYSTEM_HOME, runtime_folder

_OF_A_SESSION = "record.json"  # docs/architecture.md, "Where things are"
_ALLOW = (
    "let ordinary users make them: sudo sysctl -w user.max_user_namespaces=15000, on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0; or have root set Waypoint up for you: sudo waypoint --home "
    f"{SYSTEM_HOME} setup --user NAME"
)
_ALL_CAPABILITIES = 0x1F_FFFF_FFFF  # at least those that Linux 5.11 has, but for the last ones


def take(home: str) -> None:
    """Go into such a namespace, unless this process is in one: in that of the sessions of the home that run, so that
    they can be entered, or in a new one. Raises HostLacks.
    """
    from waypoint.linux.storage import mounts
    from waypoint.linux.tasks import namespaces

    if namespaces.has_capabilities(_ALL_CAPABILITIES):
        return
    on = f"the daemon of {home}"
    try:
        namespaces.enter_own(_find_former(home))
    except OSError as error:
        said = f"not root, and no user namespace can be made: {error.strerror or error}"
        raise HostLacks("start", on, said, _ALLOW) from error
    try:
        mounts.make_slave("/")
    except OSError as error:
        said = f"not root, and nothing may be done in a user namespace: {error.strerror or error}"
        raise HostLacks("start", on, said, _ALLOW) from error


def _find_former(home: str) -> int | None:
    """A descriptor of the namespace in which the sessions of the home run; None if none runs."""
    from waypoint.linux.tasks import procfs

    folder = f"{runtime_folder(home)}/sessions"
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in names:
        with contextlib.suppress(OSError, ValueError, KeyError):  # none of ours, or it has ended
            with open(f"{folder}/{name}/{_OF_A_SESSION}", "rb") as file:
                found = json.load(file)
            if procfs.is_same(found["init_pid"], found["init_start"]):
                return procfs.open_user_namespace_above(found["init_pid"])
    return None
