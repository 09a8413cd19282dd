"""What can go wrong, sorted by whose move it is.

Every error carries the four parts of a message: what was tried, on which thing, the system's own words, the next step.
The exit codes are part of the command line's contract and are never reused.
Free of imports: the command line's fast path loads this file, and `typing` alone would cost it 10 ms.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar


class WaypointError(Exception):
    """Base of all errors that Waypoint raises on purpose. Anything else that escapes is a bug of ours."""

    exit_code: "ClassVar[int]" = 125
    code: "ClassVar[str]" = "failure"

    def __init__(self, tried: str, on: str, said: str, next_step: str = "") -> None:
        """`tried`: an infinitive ("start a session"). `on`: the thing. `said`: the kernel's, CRIU's or our reason."""
        super().__init__(tried, on, said, next_step)
        self.tried = tried
        self.on = on
        self.said = said
        self.next_step = next_step

    def __str__(self) -> str:
        text = f"cannot {self.tried} {self.on}: {self.said}".replace("  ", " ")
        return f"{text}\n  next: {self.next_step}" if self.next_step else text

    def to_json(self) -> dict[str, str | int]:
        return {
            "code": self.code,
            "exit": self.exit_code,
            "tried": self.tried,
            "on": self.on,
            "said": self.said,
            "next": self.next_step,
        }


class UsageProblem(WaypointError):
    """The request makes no sense as it stands: bad name, unknown branch, contradicting options."""

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
    """A right request at the wrong moment: name taken, session busy, branch live."""

    exit_code = 4
    code = "conflict"


class CannotCapture(WaypointError):
    """The workload refuses the asked tier."""

    exit_code = 5
    code = "cannot-capture"


class StoreDamaged(WaypointError):
    """Stored bytes do not match what they should be. Never repaired silently."""

    exit_code = 10
    code = "store-damaged"


class Failed(WaypointError):
    """The machine refused in the middle of something legitimate (disk full, kernel error)."""


BY_CODE: dict[str, type[WaypointError]] = {
    kind.code: kind
    for kind in (UsageProblem, UnknownName, HostLacks, StateConflict, CannotCapture, StoreDamaged, Failed)
}


def from_json(parts: "Mapping[str, object]") -> WaypointError:
    """The inverse of `to_json`; an unknown code becomes `Failed`."""
    kind = BY_CODE.get(str(parts.get("code")), Failed)
    return kind(
        str(parts.get("tried", "")), str(parts.get("on", "")), str(parts.get("said", "")), str(parts.get("next", ""))
    )
