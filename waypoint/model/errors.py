"""The errors that Waypoint raises, one class for each kind of next step that the user has.

Every error carries the four parts of a message: what was tried, on which thing, the system's own words, the next step.
The exit codes are part of the command line's contract: a code keeps its meaning for ever.
This module imports nothing: the command line's fast path loads it, and importing `typing` alone takes 10 ms.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar


class WaypointError(Exception):
    """Base of all errors that Waypoint raises on purpose. An exception of another class is a bug in Waypoint."""

    exit_code: "ClassVar[int]" = 125
    code: "ClassVar[str]" = "failure"

    def __init__(self, tried: str, on: str, said: str, next_step: str = "") -> None:
        """The message reads: cannot `tried` `on`: `said`; next: `next_step`.

        `tried`: an infinitive ("start the session"). `on`: the thing it was tried on, or "". `said`: the reason, in the
        words of the kernel, of CRIU or of Waypoint. `next_step`: what the user can do, or "".
        """
        super().__init__(tried, on, said, next_step)
        self.tried = tried
        self.on = on
        self.said = said
        self.next_step = next_step

    def __str__(self) -> str:
        text = f"{f'cannot {self.tried} {self.on}'.rstrip()}: {self.said}".replace("  ", " ")
        return f"{text}\n  next: {self.next_step}" if self.next_step else text

    def to_json(self) -> dict[str, str | int]:
        """The error as the object that the API and `--json` show (docs/protocol.md, section 1)."""
        return {
            "code": self.code,
            "exit": self.exit_code,
            "tried": self.tried,
            "on": self.on,
            "said": self.said,
            "next": self.next_step,
        }


class UsageProblem(WaypointError):
    """The request is wrong in itself: bad name, unknown branch, contradicting options."""

    exit_code = 2
    code = "usage"


class UnknownName(UsageProblem):
    """A branch, checkpoint or id that does not exist."""

    code = "unknown-name"


class HostLacks(WaypointError):
    """The kernel, a program or a permission is missing."""

    exit_code = 3
    code = "host-lacks"


class StateConflict(WaypointError):
    """The request is right, but the present state forbids it: name taken, session busy, branch live."""

    exit_code = 4
    code = "conflict"


class CannotCapture(WaypointError):
    """The asked part of a session cannot be captured or restored, for example because CRIU refuses a process."""

    exit_code = 5
    code = "cannot-capture"


class StoreDamaged(WaypointError):
    """Stored data is not what Waypoint wrote. Waypoint never repairs it silently."""

    exit_code = 10
    code = "store-damaged"


class Failed(WaypointError):
    """The request was right, but the machine failed while serving it (disk full, kernel error)."""


BY_CODE: dict[str, type[WaypointError]] = {
    kind.code: kind
    for kind in (UsageProblem, UnknownName, HostLacks, StateConflict, CannotCapture, StoreDamaged, Failed)
}


def from_json(parts: "Mapping[str, object]") -> WaypointError:
    """The error whose `to_json` is `parts`. An unknown code, as of a newer daemon, becomes `Failed`."""
    kind = BY_CODE.get(str(parts.get("code")), Failed)
    return kind(
        str(parts.get("tried", "")), str(parts.get("on", "")), str(parts.get("said", "")), str(parts.get("next", ""))
    )
