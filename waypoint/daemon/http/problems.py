"""The HTTP statuses of exceptions, and the form of an error in an answer."""

import msgspec

from waypoint.model.errors import (
    CannotCapture,
    Conflicting,
    HostLacks,
    NotAllowed,
    StateConflict,
    UnknownName,
    UsageProblem,
    WaypointError,
)

# The first class that matches decides. All other errors are failures of Waypoint or of the machine: 500.
STATUSES: tuple[tuple[type[WaypointError], int], ...] = (
    (UnknownName, 404),
    (UsageProblem, 400),
    (StateConflict, 409),
    (Conflicting, 409),
    (CannotCapture, 422),
    (NotAllowed, 403),
    (HostLacks, 501),
)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The four parts of an error message, the error's class, and the exit code of the command line for it."""

    code: str
    exit: int
    tried: str
    on: str
    said: str
    next: str


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer with a status other than 2xx, and of an `x` frame that ends a stream with an error."""

    error: Problem


class HttpProblem(Exception):
    """A request that is refused, with the HTTP status, before a service function has done its work."""

    def __init__(self, status: int, said: str, next_step: str = "", on: str = "") -> None:
        super().__init__(status, said)
        self.status = status
        self.problem = UsageProblem("serve the request", on, said, next_step)


def status_of(problem: WaypointError) -> int:
    return next((status for kind, status in STATUSES if isinstance(problem, kind)), 500)
