"""The home and the branch that are meant if none is named. model/paths.py has the paths below a home."""

import os

from waypoint.model.errors import UsageProblem
from waypoint.model.names import DEFAULT_BRANCH, is_name, parse_name
from waypoint.model.paths import OWN_HOME, SYSTEM_HOME, WRAPPER


def find_home(asked: str | None = None) -> str:
    """The real path of the home: `asked`, else $WAYPOINT_HOME, else an ordinary user's own home if it has been set up,
    else the machine's, whose daemon may serve ordinary users too, if there is one, else the user's own. The home need
    not exist. Raises UsageProblem for a path that cannot be followed.
    """
    named = asked or os.environ.get("WAYPOINT_HOME")
    if named:
        try:
            return os.path.realpath(named)
        except OSError as error:  # a link that the kernel follows for nobody, such as /proc/1/root
            raise UsageProblem("use", f"the home {named}", error.strerror or "", "name another folder") from error
    if os.geteuid() != 0:
        own = own_home()
        if os.path.exists(f"{own}/config.json") or not os.path.exists(SYSTEM_HOME):
            return os.path.realpath(own)
    return os.path.realpath(SYSTEM_HOME)


def own_home() -> str:
    """Where an ordinary user's own home is, if no other place is named."""
    return os.path.expanduser(f"~/{OWN_HOME}")


def pick_branch(asked: str | None = None) -> str:
    """`asked`, else $WAYPOINT_BRANCH (in a session: the session's branch), else `main`. Raises UsageProblem for a bad
    name.
    """
    return parse_name(asked if asked is not None else os.environ.get("WAYPOINT_BRANCH") or DEFAULT_BRANCH)


def working_branch() -> str | None:
    """The branch that this process works on, which $WAYPOINT_BRANCH names (in a session: the session's branch); None if
    the variable is not set, or is no name.
    """
    named = os.environ.get("WAYPOINT_BRANCH", "")
    return named if is_name(named) else None


def is_inside_session() -> bool:
    """True if this process runs inside a session: Waypoint's script exists only there."""
    return os.path.exists(f"/{WRAPPER}")
