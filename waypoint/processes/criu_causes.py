"""What CRIU's error messages mean: a table from its words to ours, and the reading of its logs.

Out of scope: asking CRIU anything (criu_rpc.py).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from waypoint.model.errors import CannotCapture
from waypoint.processes.criu_cause_table import CAUSES

MAX_LOG_BYTES = 1 << 20

# Errors that are none (CRIU says the first on every run without CAP_SYS_RESOURCE and goes on), or that say nothing.
_HARMLESS = re.compile(r"rlimit: Can't setup RLIMIT_NOFILE for self|^exited, status=|^(?:Dumping|Restoring) FAILED")
_ERROR_LINE = re.compile(r"(?:^|\) )(?:pie: \d+: )?(?:\s*\d+: )?Error \([^)]*\): (.*)$")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why CRIU gave up. `name`: that of the cause, or `unknown`. `words`: CRIU's own line."""

    name: str
    words: str
    meaning: str
    next_step: str


class CriuFailed(CannotCapture):
    """CRIU gave up. `diagnosis` says why; `log` is the path of its log; `died`: it ended without an answer."""

    def __init__(self, action: str, diagnosis: Diagnosis, log: Path, *, died: bool = False) -> None:
        said = diagnosis.words
        if diagnosis.meaning:
            said = f"{diagnosis.meaning} (CRIU: {diagnosis.words})"
        super().__init__(f"{action} the processes", f"(log: {log})", said, diagnosis.next_step)
        self.diagnosis = diagnosis
        self.log = log
        self.died = died
        self._action = action

    def moved(self, log: Path) -> "CriuFailed":
        """The same, with the log at another place."""
        return CriuFailed(self._action, self.diagnosis, log, died=self.died)


def read_errors(log: Path) -> list[str]:
    """The error lines of a CRIU log, without time, pid and place in CRIU's source. Empty if there is no log."""
    try:
        with log.open("rb") as file:
            text = file.read(MAX_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return []
    return find_errors(text)


def find_errors(text: str) -> list[str]:
    found = (_ERROR_LINE.search(line) for line in text.splitlines())
    lines = [match[1] for match in found if match]
    return [line for line in lines if not _HARMLESS.search(line)]


def diagnose(errors: list[str]) -> Diagnosis:
    """The first known cause that any of the lines shows. Causes are tried in the order of the table: CRIU's first error
    is often only the consequence of a later one that another process wrote.
    """
    for cause in CAUSES:
        for line in errors:
            match = re.search(cause.pattern, line)
            if match:
                groups = {name: text or "" for name, text in match.groupdict().items()}
                return Diagnosis(cause.name, line, cause.meaning.format(**groups).rstrip(), cause.next_step)
    words = errors[0] if errors else "it ended without a word"
    return Diagnosis("unknown", words, "", "read the log; `waypoint doctor` shows what works on this machine")
