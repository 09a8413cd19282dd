"""The default home and the default branch. model/paths.py has the paths below a home."""

import os

from waypoint.model.errors import UsageProblem
from waypoint.model.names import DEFAULT_BRANCH, is_name, parse_name
from waypoint.model.paths import RUNTIME_LINK, SYSTEM_HOME, WRAPPER, may_exist, socket_path


def find_home(asked: str | None = None) -> str:
    """The real path of the home: `asked`, else $WAYPOINT_HOME, else the user's own home if it has been set up, else the
    machine's. A user who is not root gets an own home if the machine has none. The home need not exist.
    """
    named = asked or os.environ.get("WAYPOINT_HOME")
    if named:
        try:
            return os.path.realpath(named)
        except OSError as error:  # a link that cannot be followed, such as /proc/1/root
            raise UsageProblem("use", f"the home {named}", error.strerror or "", "name another directory") from error
    if os.geteuid() != 0:
        own = own_home()
        # An own home that works without root has this link. The machine's home is better, if this user may use it.
        is_second = os.path.islink(f"{own}/{RUNTIME_LINK}") and os.access(socket_path(SYSTEM_HOME), os.W_OK)
        if not is_second and (os.path.exists(f"{own}/config.json") or not may_exist(SYSTEM_HOME)):
            return os.path.realpath(own)
    return os.path.realpath(SYSTEM_HOME)


def own_home() -> str:
    """The path of the home of a user who is not root. It need not exist."""
    data = os.environ.get("XDG_DATA_HOME", "")
    return f"{data if data.startswith('/') else os.path.expanduser('~/.local/share')}/waypoint"


def pick_branch(asked: str | None = None) -> str:
    """`asked`, else $WAYPOINT_BRANCH (set in a session), else `main`. Raises UsageProblem for a bad name."""
    return parse_name(asked if asked is not None else os.environ.get("WAYPOINT_BRANCH") or DEFAULT_BRANCH)


def working_branch() -> str | None:
    """The branch in $WAYPOINT_BRANCH (set in a session); None if it is not set or is not a name."""
    named = os.environ.get("WAYPOINT_BRANCH", "")
    return named if is_name(named) else None


def is_inside_session() -> bool:
    """Whether this process runs inside a session: Waypoint's script exists only there."""
    return os.path.exists(f"/{WRAPPER}")
