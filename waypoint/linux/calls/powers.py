"""What the kernel lets this process do: all that the machine's root may, or what one may in a user namespace of one's
own (user_namespaces(7)), where an ordinary user has started the daemon (`namespaces.enter_own`).
"""

import functools
import os

from waypoint.model.paths import SYSTEM_HOME

WITHOUT_ROOT = "Waypoint runs without root"
"""Why something is not there, in words."""
AS_ROOT = f"have root set Waypoint up for you: sudo waypoint --home {SYSTEM_HOME} setup --user NAME"
"""The remedy."""


@functools.cache
def is_machines() -> bool:
    """Whether these are the powers of root. It is found out once, in the daemon, and in the launcher before its tasks
    become other users.
    """
    return os.geteuid() == 0


def overlay_mark(name: str) -> str:
    """The extended attribute in which overlayfs keeps its mark `name`: `trusted` ones are for the machine's root
    alone, so elsewhere it is mounted with `userxattr` (overlayfs.rst, Linux 5.11).
    """
    return f"{'trusted' if is_machines() else 'user'}.overlay.{name}"
