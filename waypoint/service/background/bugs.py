"""Unexpected exceptions: logging them, and the error for the client.

The log never contains values that a client sent, so the message of an exception is logged only if it cannot quote any.
"""

import logging
import traceback

from waypoint.model.errors import WaypointError

LOG = logging.getLogger("waypoint")

# Exceptions whose messages come from the kernel or from Waypoint; others may quote a client's values.
_QUOTABLE = (OSError, AssertionError, WaypointError)


class Bug(WaypointError):
    """An unexpected exception, a fault of Waypoint."""

    code = "bug"


def as_problem(error: Exception, on: str) -> WaypointError:
    """Return `error` if it is a WaypointError; else log its traceback, and return a Bug with its message."""
    if isinstance(error, WaypointError):
        return error
    log_bug(error, on)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    next_step = "this is a bug of Waypoint; please report it with its traceback: waypoint daemon logs"
    return Bug("serve", on, said, next_step)


def log_bug(error: BaseException, on: str) -> None:
    """Log the traceback of `error` and of its causes."""
    lines = [f"bug while serving {on}:"]
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and cause not in seen:
        seen.append(cause)
        said = f": {cause}" if isinstance(cause, _QUOTABLE) else ""
        lines += [part.rstrip("\n") for part in traceback.format_tb(cause.__traceback__)]
        lines.append(f"{type(cause).__name__}{said}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    LOG.error("\n".join(lines))
