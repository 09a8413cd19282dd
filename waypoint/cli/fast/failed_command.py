"""The error of an `exec` that did not end by itself: Waypoint could not run it, or has lost it."""

from waypoint.model.errors import Failed, StateConflict
from waypoint.model.paths import spelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from waypoint.model.errors import WaypointError

_EXIT_TIMEOUT = 124


def error_of(home: str, branch: str, end: "dict[str, object]") -> "WaypointError | None":
    """What `end`, the fields of an exec's `x` frame, says of a failure of Waypoint's. None if it tells of none: the
    command has ended by itself, or at its timeout, which is what was asked for.
    """
    said = str(end.get("said") or "")
    if end.get("by") != "waypoint" or end.get("exit") == _EXIT_TIMEOUT or not said:
        return None
    on = f"branch {branch}"
    if end.get("ended"):
        return Failed("follow the command on", on, said, f"to go on there: {spelled(home, 'shell', branch)}")
    beside = spelled(home, "run", "-b", branch, "--", "CMD")
    next_step = f"if its shell is a busy bash or zsh, wait for it (exec --wait-prompt S), else run beside it: {beside}"
    return StateConflict("run the command on", on, said, next_step)
