"""Exceptions that nobody expected: what the log says of them, and what is told to whoever asked.

The log never holds what came from a client: of an exception that may quote its arguments only the type is written.
"""

import logging
import traceback

from waypoint.model.errors import WaypointError

LOG = logging.getLogger("waypoint")

# Exceptions whose texts come from the kernel or from Waypoint. The texts of all others may quote values that a client
# sent.
_QUOTABLE = (OSError, AssertionError, WaypointError)


class Bug(WaypointError):
    """An exception that nobody expected: our fault."""

    code = "bug"


def as_problem(error: Exception, on: str) -> WaypointError:
    """`error` itself if it was raised on purpose; else a Bug for the client, after the traceback has gone to the log.

    The client is told the whole message, also values that it sent.
    """
    if isinstance(error, WaypointError):
        return error
    log_bug(error, on)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    next_step = "this is a bug of Waypoint; please report it with its traceback: waypoint daemon logs"
    return Bug("serve", on, said, next_step)


def log_bug(error: BaseException, on: str) -> None:
    """Write where `error` comes from, cause by cause, without values."""
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
