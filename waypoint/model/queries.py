"""The queries of GET requests, as typed records. Unknown fields are refused."""

from waypoint.model.requests import Count, Request

MOST_NAMES = 256  # whose usage may be asked for at once: each is a walk over all files of a capture


class SessionsQuery(Request, frozen=True):
    """`all`: also the branches that could be started again."""

    all: bool = False


class LogQuery(Request, frozen=True):
    """`name`: where to go back from, default `main`. `all`: every capture instead."""

    name: str | None = None
    all: bool = False
    limit: Count | None = None


class DuQuery(Request, frozen=True):
    """`names`: of which captures and live branches, at most MOST_NAMES, separated by spaces (no name has one in it);
    null: of all.
    """

    names: str | None = None


class OperationsQuery(Request, frozen=True):
    limit: Count | None = None
