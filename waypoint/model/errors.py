"""The errors that Waypoint raises, one class for each kind of next step. An exit code never changes its meaning.

The fast path loads this module: client/wire.py says what may be imported here.
"""

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar


# Next steps for errors of the disk.
READ_ONLY = "see the kernel's log (dmesg): the file system is read-only; make it writable"
MAKE_ROOM = (
    "free some disk space, or remove what you do not need ('waypoint rm', 'waypoint stop --discard') and run "
    "'waypoint gc'; with --keep-operations 0 it also removes the captures for undo"
)
DISK_FAILED = "see the kernel's log (dmesg): the disk has failed; copy the home to another disk before anything else"


def cleaned(text: str, keep: str = "") -> str:
    """`text` (file names, output of programs, CRIU's words) for a terminal or a log: each control character that is not
    in `keep` becomes "?". Undecodable bytes stay.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep or "\udc80" <= one <= "\udcff" else "?" for one in text)


def one_line(text: str) -> str:
    """Return the first line of `text`, cleaned."""
    return cleaned(text.strip().partition("\n")[0])


def as_text(text: str) -> str:
    """`text` for JSON: undecodable bytes (surrogates, os.fsdecode) become `\\udcNN`."""
    return text.encode(errors="backslashreplace").decode()


class WaypointError(Exception):
    """Base of all errors that Waypoint raises on purpose. Any other exception is a bug in Waypoint."""

    exit_code: "ClassVar[int]" = 125
    code = "failure"

    def __init__(self, tried: str, on: str, said: str, next_step: str = "", *, code: str = "") -> None:
        """The message reads: cannot `tried` `on`: `said`; next: `next_step`.

        `tried`: a verb with its object ("start the session"). `on`: the thing it failed on, or "". `said`: the reason,
        as the kernel, CRIU or Waypoint reports it. `next_step`: what the user can do, or "". `code`: a more exact code
        than that of the class (ERROR_CODES in model/conditions.py).
        """
        super().__init__(tried, on, said, next_step)
        if code:
            self.code = code
        self.tried = tried
        self.on = on
        self.said = said
        self.next_step = next_step

    def __str__(self) -> str:
        """Return the message for people. Each part is cleaned: a line break in a file name must not imitate a next
        step.
        """
        tried, on, said, next_step = (cleaned(part) for part in (self.tried, self.on, self.said, self.next_step))
        text = f"{' '.join(filter(None, ('cannot', tried, on)))}: {said}"
        return f"{text}\n  next: {next_step}" if next_step else text

    def to_json(self) -> dict[str, str | int]:
        """Return the error as the API and `--json` show it (docs/protocol.md, section 1)."""
        return {
            "code": self.code,
            "exit": self.exit_code,
            "tried": as_text(self.tried),
            "on": as_text(self.on),
            "said": as_text(self.said),
            "next": as_text(self.next_step),
        }


class UsageProblem(WaypointError):
    """The request itself is wrong: bad name, unknown branch, contradicting options."""

    exit_code = 2
    code = "usage"


class UnknownName(UsageProblem):
    """The branch, checkpoint or id does not exist."""

    code = "unknown-name"


class HostLacks(WaypointError):
    """The kernel feature, program or permission is missing."""

    exit_code = 3
    code = "host-lacks"


class NotAllowed(HostLacks):
    """The caller lacks the permission; root, or a user whom root trusts fully, has it."""

    code = "not-allowed"


class StateConflict(WaypointError):
    """The request is valid, but the present state forbids it: name taken, session busy, branch live."""

    exit_code = 4
    code = "conflict"


class CannotCapture(WaypointError):
    """A part of a session cannot be captured or restored, for example because CRIU refuses a process."""

    exit_code = 5
    code = "cannot-capture"


class Conflicting(WaypointError):
    """The machine's files have changed, so that the session's files would replace work of others."""

    exit_code = 6
    code = "conflicts"


class StoreDamaged(WaypointError):
    """Stored data differs from what Waypoint wrote. Waypoint never repairs it silently."""

    exit_code = 10
    code = "store-damaged"


class Failed(WaypointError):
    """The request was valid, but the machine failed during it (disk full, kernel error)."""


def of_machine(number: int | None) -> str:
    """The code of an error that the kernel reports with this errno; "failure" if it has none of its own."""
    return _OF_MACHINE.get(number or 0, Failed.code)


_OF_MACHINE = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EROFS: "disk-read-only",
    errno.EIO: "disk-failed",
    errno.ENOMEM: "out-of-memory",
}

_KINDS = (
    UsageProblem,
    UnknownName,
    HostLacks,
    NotAllowed,
    StateConflict,
    CannotCapture,
    Conflicting,
    StoreDamaged,
    Failed,
)
BY_CODE: dict[str, type[WaypointError]] = {kind.code: kind for kind in _KINDS}
"""The classes, by the code that their errors have if it is not more exact."""
_UNKNOWN_NAMES = dict.fromkeys(("ambiguous", "no-capture", "capture-removed"), UnknownName)
_BY_EXIT: dict[object, type[WaypointError]] = {kind.exit_code: kind for kind in reversed(_KINDS)}


def from_json(parts: "Mapping[str, object]") -> WaypointError:
    """The error whose `to_json` is `parts`. Its class follows from the code, or from the exit status if the code is
    more exact than the classes, or from a newer daemon.
    """
    code = str(parts.get("code") or "")
    kind = BY_CODE.get(code) or _UNKNOWN_NAMES.get(code) or _BY_EXIT.get(parts.get("exit"), Failed)
    tried, on, said, next_step = (str(parts.get(name, "")) for name in ("tried", "on", "said", "next"))
    return kind(tried, on, said, next_step, code=code)
