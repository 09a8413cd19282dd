"""`waypoint attach`."""

from waypoint.cli import terminal
from waypoint.cli.caller import asker_of, branch_of, home_of, require_terminal
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status: the shell's if the session ends, 0 after a detach. Raises WaypointError."""
    branch = branch_of(given)
    next_step = "use 'waypoint exec' to run a command in it, 'waypoint logs' to see it"
    require_terminal("attach to", f"branch {branch}", next_step)
    return terminal.attach(home_of(given), branch, asker_of(given))
