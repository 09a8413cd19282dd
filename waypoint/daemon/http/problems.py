"""From exceptions to HTTP statuses, and the shape of an error in an answer."""

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

# The first that fits; what is not listed is our failure or the machine's: 500.
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
    """The four parts of a message, the class of the error and the exit code that the command line gives for it."""

    code: str
    exit: int
    tried: str
    on: str
    said: str
    next: str


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer outside 2xx, and of an `x` frame that ends a stream with an error."""

    error: Problem


class HttpProblem(Exception):
    """A request that is refused before any service function has done its work, with the fitting HTTP status."""

    def __init__(self, status: int, said: str, next_step: str = "", on: str = "") -> None:
        super().__init__(status, said)
        self.status = status
        self.problem = UsageProblem("serve the request", on, said, next_step)


def status_of(problem: WaypointError) -> int:
    return next((status for kind, status in STATUSES if isinstance(problem, kind)), 500)
