"""The default home and the default branch. model/paths.py has the paths below a home."""

import os

from waypoint.model.errors import UsageProblem
from waypoint.model.names import DEFAULT_BRANCH, is_name, parse_name
from waypoint.model.paths import SYSTEM_HOME, WRAPPER


def find_home(asked: str | None = None) -> str:
    """The real path of the home: `asked`, else $WAYPOINT_HOME, else the user's own home if it has been set up, else the
    machine's. The home need not exist.
    """
    named = asked or os.environ.get("WAYPOINT_HOME")
    if named:
        try:
            return os.path.realpath(named)
        except OSError as error:  # a link that cannot be followed, such as /proc/1/root
            raise UsageProblem("use", f"the home {named}", error.strerror or "", "name another directory") from error
    if os.geteuid() != 0:
        own = os.path.expanduser("~/.local/share/waypoint")
        if os.path.exists(f"{own}/config.json"):
            return os.path.realpath(own)
    return os.path.realpath(SYSTEM_HOME)


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
