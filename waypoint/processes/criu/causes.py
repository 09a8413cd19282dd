"""Reading CRIU's logs, and finding the reason for a failure in them (cause_table.py).

Out of scope: requests to CRIU (rpc.py).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from waypoint.model.errors import CannotCapture, Failed, WaypointError
from waypoint.processes.criu.cause_table import CAUSES

MAX_LOG_BYTES = 1 << 20

# Error lines that are no reason for a failure. CRIU writes the first one in every run without CAP_SYS_RESOURCE and goes
# on; the others only say that the run has failed.
_HARMLESS = re.compile(r"rlimit: Can't setup RLIMIT_NOFILE for self|^exited, status=|^(?:Dumping|Restoring) FAILED")
_ERROR_LINE = re.compile(r"(?:^|\) )(?:pie: \d+: )?(?:\s*\d+: )?Error \([^)]*\): (.*)$")
_NEXT_STEP = "try again; if it happens again, see 'waypoint doctor'"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why CRIU failed. `name`: of the row in the table, or `unknown`, `died` or `silent`. `words`: CRIU's error line.
    `is_accident`: as in the table.
    """

    name: str
    words: str
    meaning: str
    next_step: str
    is_accident: bool = False


class CriuFailed(WaypointError):
    """CRIU failed. `diagnosis`: the reason. `log`: the path of CRIU's log; None if CRIU has opened none. Every such
    error is of one of the two classes below; `failure` makes them.
    """

    def __init__(self, action: str, diagnosis: Diagnosis, log: Path | None) -> None:
        said = diagnosis.words
        if diagnosis.meaning:
            said = f"{diagnosis.meaning} (CRIU: {diagnosis.words})"
        super().__init__(f"{action} the processes", f"(log: {log})" if log else "", said, diagnosis.next_step)
        self.diagnosis = diagnosis
        self.log = log
        self._action = action

    def moved(self, log: Path | None) -> Self:
        """This error for a log that was moved to `log`; None: there is no log."""
        return type(self)(self._action, self.diagnosis, log)


class CriuRefused(CriuFailed, CannotCapture):
    """CRIU cannot do this with these processes, or on this host."""


class CriuAccident(CriuFailed, Failed):
    """Something happened to CRIU: it was killed, it hung, disk or memory ran out. Another try may succeed."""


def failure(action: str, diagnosis: Diagnosis, log: Path | None) -> CriuFailed:
    """The error for `diagnosis`. `action`: what was asked of CRIU, "dump" or "restore"."""
    return (CriuAccident if diagnosis.is_accident else CriuRefused)(action, diagnosis, log)


def died(errors: list[str]) -> Diagnosis:
    """The diagnosis of a CRIU that has ended without an answer. `errors`: what CRIU has said before."""
    words = errors[0] if errors else "CRIU ended without a message"
    return Diagnosis("died", words, "CRIU was killed, or crashed, before it had answered", _NEXT_STEP, is_accident=True)


def fell_silent(silence_s: float) -> Diagnosis:
    """The diagnosis of a CRIU that was killed because it hung. `silence_s`: the deadline."""
    words = f"CRIU hung: it sent nothing for {silence_s:.1f} s or longer, and was killed"
    return Diagnosis("silent", words, "", _NEXT_STEP, is_accident=True)


def read_errors(log: Path) -> list[str]:
    """The error messages in the CRIU log at `log`, without time, pid and source line. Empty if there is no log.

    Only the first MAX_LOG_BYTES are read.
    """
    try:
        with log.open("rb") as file:
            text = file.read(MAX_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return []
    return find_errors(text)


def find_errors(text: str) -> list[str]:
    """The error messages in the text of a CRIU log, without those that are no reason for a failure."""
    found = (_ERROR_LINE.search(line) for line in text.splitlines())
    lines = [match[1] for match in found if match]
    return [line for line in lines if not _HARMLESS.search(line)]


def diagnose(errors: list[str]) -> Diagnosis:
    """The first row of the table whose pattern matches one of `errors`.

    The table's order decides, not that of the lines: CRIU's processes write to one log, and the first error in it is
    often the consequence of one that another process writes later.
    """
    for cause in CAUSES:
        for line in errors:
            match = re.search(cause.pattern, line)
            if match:
                groups = {name: text or "" for name, text in match.groupdict().items()}
                meaning = cause.meaning.format(**groups).rstrip()
                return Diagnosis(cause.name, line, meaning, cause.next_step, cause.is_accident)
    words = errors[0] if errors else "CRIU ended without a message"
    return Diagnosis("unknown", words, "", "read the log; `waypoint doctor` shows what works on this machine")
