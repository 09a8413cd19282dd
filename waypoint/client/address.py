"""Which home and which branch are meant where none is named. What lies where below a home says model/paths.py."""

import os

from waypoint.model.names import parse_name
from waypoint.model.paths import SYSTEM_HOME

# Only a session has this: it comes with the skeleton layer (docs/architecture.md, "Where things are").
SESSION_MARK = "/.waypoint/wrapper.sh"


def find_home(asked: str | None = None) -> str:
    """The real path of the home: `asked`, else $WAYPOINT_HOME, else the machine's; it need not exist.

    An ordinary user has a home of their own only after making one; otherwise the machine's is meant, whose daemon may
    serve them.
    """
    named = asked or os.environ.get("WAYPOINT_HOME")
    if named:
        return os.path.realpath(named)
    if os.geteuid() != 0:
        own = os.path.expanduser("~/.local/share/waypoint")
        if os.path.exists(f"{own}/config.json"):
            return os.path.realpath(own)
    return os.path.realpath(SYSTEM_HOME)


def pick_branch(asked: str | None = None) -> str:
    """`asked`, else $WAYPOINT_BRANCH (set in a session to its own), else `main`. Raises UsageProblem for a bad name."""
    return parse_name(asked if asked is not None else os.environ.get("WAYPOINT_BRANCH") or "main")


def is_inside_session() -> bool:
    return os.path.exists(SESSION_MARK)
