"""The errors that Waypoint raises, one class for each kind of next step that the user has.

Every error carries the four parts of a message: what was tried, on which thing, the system's own words, the next step.
The exit codes are part of the command line's contract: a code keeps its meaning for ever.
The fast path loads this module: client/wire.py says what may be imported here.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar


# Next steps for what a disk does, wherever it is met.
READ_ONLY = "see the kernel's log (dmesg): the file system is read-only; make it writable"
MAKE_ROOM = (
    "free some disk space, or remove what is not needed ('waypoint rm', 'waypoint stop --discard') and run "
    "'waypoint gc': without --keep-operations 0 it keeps what undo needs"
)
DISK_FAILED = "see the kernel's log (dmesg): the disk has failed; copy the home to another disk before anything else"


def cleaned(text: str, keep: str = "") -> str:
    """A text that others have a part in (file names, programs, CRIU) for a terminal or a log: with "?" in place of each
    character that they could act on, but for those in `keep`. Bytes that are no text stay.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep or "\udc80" <= one <= "\udcff" else "?" for one in text)


def one_line(text: str) -> str:
    """The first line of a text from outside, without what a terminal would act on."""
    return cleaned(text.strip().partition("\n")[0])


def as_text(text: str) -> str:
    """`text` for JSON. Bytes that are no text (surrogates, os.fsdecode), which JSON cannot have, become `\\udcNN`."""
    return text.encode(errors="backslashreplace").decode()


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
        """The message for people. The parts are cleaned one by one: a line break in the name of a file must not begin a
        line that looks like the next step.
        """
        tried, on, said, next_step = (cleaned(part) for part in (self.tried, self.on, self.said, self.next_step))
        text = f"{' '.join(filter(None, ('cannot', tried, on)))}: {said}"
        return f"{text}\n  next: {next_step}" if next_step else text

    def to_json(self) -> dict[str, str | int]:
        """The error as the object that the API and `--json` show (docs/protocol.md, section 1)."""
        return {
            "code": self.code,
            "exit": self.exit_code,
            "tried": as_text(self.tried),
            "on": as_text(self.on),
            "said": as_text(self.said),
            "next": as_text(self.next_step),
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


class NotAllowed(HostLacks):
    """Whoever asks may not have this; root, or a user whom root trusts fully, may."""

    code = "not-allowed"


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
    for kind in (
        *(UsageProblem, UnknownName, HostLacks, NotAllowed, StateConflict, CannotCapture, StoreDamaged, Failed),
    )
}


def from_json(parts: "Mapping[str, object]") -> WaypointError:
    """The error whose `to_json` is `parts`. An unknown code, as of a newer daemon, becomes `Failed`."""
    kind = BY_CODE.get(str(parts.get("code")), Failed)
    return kind(
        str(parts.get("tried", "")), str(parts.get("on", "")), str(parts.get("said", "")), str(parts.get("next", ""))
    )
