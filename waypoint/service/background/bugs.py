"""Exceptions that nobody expected: what the log says of them, and what is told to whoever asked.

The log never holds what came from a client: of an exception that may quote its arguments only the type is written.
"""

import logging

from waypoint.model.errors import WaypointError, bug_of, trace_of

LOG = logging.getLogger("waypoint")


def as_problem(error: Exception, on: str) -> WaypointError:
    """`error` itself if it was raised on purpose; else a Bug for the client, after the traceback has gone to the log.

    The client is told the whole message, also values that it sent.
    """
    if isinstance(error, WaypointError):
        return error
    log_bug(error, on)
    return bug_of(error, "serve", on)


def log_bug(error: BaseException, on: str) -> None:
    """Write where `error` comes from, cause by cause, without values."""
    LOG.error(trace_of(error, on))
