"""Reading CRIU's logs, and finding the reason for a failure in them (cause_table.py)."""

import contextlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from waypoint.linux.tasks import procfs
from waypoint.model.errors import CannotCapture, Failed, WaypointError
from waypoint.processes.criu.cause_table import CAUSES, Cause

MAX_LOG_BYTES = 1 << 20
_BY_NAME = {cause.name: cause for cause in CAUSES}
_A_PROCESS = "a process "
TRY_AGAIN = "try again; if it happens again, see 'waypoint doctor'"
KILLED = frozenset({"died", "silent"})
"""The names of the diagnoses of a CRIU that was killed."""

# Error lines that do not cause a failure. CRIU writes the first one in every run without CAP_SYS_RESOURCE and
# continues; the others only report that the run has failed.
_HARMLESS = re.compile(r"rlimit: Can't setup RLIMIT_NOFILE for self|^exited, status=|^(?:Dumping|Restoring) FAILED")
_ERROR_LINE = re.compile(r"(?:^|\) )(?:pie: \d+: )?(?:\s*\d+: )?Error \([^)]*\): (.*)$")
_TASK_LINE = re.compile(r"Dumping (?:task|core) \(pid: (\d+)")
_FILE_LINE = re.compile(r"(?:^|\) )(\d+) fdinfo (\d+): pos")
_SEIZED_LINE = re.compile(r"(?:^|\) )\s*(?:Seized task (\d+),|Seizing (\d+)'s )")
_THREAD_ERROR = re.compile(r"Zombie|Individually stopped")  # written while CRIU stops the threads of a process
_FAILED_LINE = re.compile(r"Error .* \(pid: (\d+)\)")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why CRIU failed. `name`: of the row in the table, or `other`, `died` or `silent`. `words`: CRIU's error line.
    `is_accident`: as in the table. `pid`: the host's pid in that line, or 0. `who`: the process at which CRIU failed,
    or "".
    """

    name: str
    words: str
    meaning: str
    next_step: str
    is_accident: bool = False
    pid: int = 0
    who: str = ""

    @property
    def said(self) -> str:
        """The reason in words, with the name of the process."""
        meaning = self.meaning or f"CRIU reports an error that Waypoint does not know: {self.words}"
        if not self.who:
            return meaning
        if ", fd " in self.who:
            meaning = re.sub(r" \(fd -?\d+\)", "", meaning)
        if meaning.startswith(_A_PROCESS):
            return f"{self.who} {meaning.removeprefix(_A_PROCESS)}"
        return f"{self.who}: {meaning}"


class Culprit(NamedTuple):
    """The process at which a dump has failed, and its descriptor, or -1."""

    pid: int
    fd: int = -1


class CriuFailed(WaypointError):
    """CRIU failed. `log`: the path of CRIU's log; None if CRIU has not opened one. Errors are made by `failure` and
    belong to one of the two subclasses below.
    """

    def __init__(self, action: str, diagnosis: Diagnosis, log: Path | None) -> None:
        super().__init__(
            f"{action} the processes",
            f"(log: waypoint doctor --criu-log {log.stem})" if log else "",
            diagnosis.said,
            diagnosis.next_step,
            code=f"criu-{diagnosis.name}",
        )
        self.diagnosis = diagnosis
        self.log = log
        self._action = action

    def moved(self, log: Path | None) -> Self:
        """This error with another path of the log."""
        return type(self)(self._action, self.diagnosis, log)


class CriuRefused(CriuFailed, CannotCapture):
    """CRIU cannot dump or restore these processes, or not on this host."""


class CriuAccident(CriuFailed, Failed):
    """CRIU was killed or hung, or disk or memory ran out. Another try may succeed."""


def failure(action: str, diagnosis: Diagnosis, log: Path | None) -> CriuFailed:
    """The error for `diagnosis`. `action`: "dump" or "restore"."""
    return (CriuAccident if diagnosis.is_accident else CriuRefused)(action, diagnosis, log)


def died(errors: list[str]) -> Diagnosis:
    """The diagnosis of a CRIU that has ended without an answer. `errors`: its error messages."""
    words = errors[0] if errors else "CRIU ended without a message"
    return Diagnosis("died", words, "CRIU was killed, or crashed, before it had answered", TRY_AGAIN, is_accident=True)


def fell_silent(silence_s: float) -> Diagnosis:
    """The diagnosis of a CRIU that was killed because it hung."""
    meaning = f"CRIU hung: it sent nothing for {silence_s:.1f} s or longer, and was killed"
    return Diagnosis("silent", "", meaning, TRY_AGAIN, is_accident=True)


def read_errors(log: Path) -> list[str]:
    """The error messages in the last MAX_LOG_BYTES of the CRIU log at `log`, without time, pid and source line. Empty
    if there is no log.
    """
    return find_errors(_read_end(log))


def read_culprit(log: Path) -> Culprit | None:
    """Read from the dump's log which process (by the host's pid) made the dump fail; None if the log does not contain
    it. A log with only error messages contains no descriptor.
    """
    return find_culprit(_read_end(log))


def find_culprit(text: str) -> Culprit | None:
    """Find in the text of a dump's log the process at which the dump failed; None if the text does not name it."""
    found = seized = None
    is_thread = False
    lines = iter(text.splitlines())
    for line in lines:
        error = _ERROR_LINE.search(line)
        if error and not _HARMLESS.search(error[1]):
            lines = itertools.chain([line], lines)
            is_thread = bool(_THREAD_ERROR.match(error[1]))
            break
        if match := _FILE_LINE.search(line):
            found = Culprit(int(match[1]), int(match[2]))
        elif match := _TASK_LINE.search(line):
            found = Culprit(int(match[1]))
        elif match := _SEIZED_LINE.search(line):
            seized = Culprit(int(match[1] or match[2]))
    for line in lines:  # CRIU's last lines name the failed action and its process
        if match := _FAILED_LINE.search(line):
            pid = int(match[1])
            return found if found is not None and found.pid == pid else Culprit(pid)
    return seized if is_thread else None


def _read_end(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - MAX_LOG_BYTES))
            return file.read(MAX_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def find_errors(text: str) -> list[str]:
    """The error messages in the text of a CRIU log, without harmless ones."""
    found = (_ERROR_LINE.search(line) for line in text.splitlines())
    lines = [match[1] for match in found if match]
    return [line for line in lines if not _HARMLESS.search(line)]


def diagnose(errors: list[str]) -> Diagnosis:
    """The first row of the table whose pattern matches one of `errors`.

    The order of the table decides, not that of the lines: CRIU's processes share the log, and its first error is often
    the consequence of an error that another process writes later.
    """
    for cause in CAUSES:
        for line in errors:
            match = re.search(cause.pattern, line)
            if match:
                groups = {name: text or "" for name, text in match.groupdict().items()}
                return _diagnosis(cause, groups, words=line, pid=int(groups.get("pid") or 0))
    words = errors[0] if errors else "CRIU ended without a message"
    return Diagnosis("other", words, "", "read the log; `waypoint doctor` shows what works on this machine")


def known(name: str, who: str, groups: Mapping[str, str]) -> Diagnosis:
    """The diagnosis that CRIU's error would get, for a cause of the table that is known without CRIU."""
    return _diagnosis(_BY_NAME[name], groups, who=who)


def _diagnosis(cause: Cause, groups: Mapping[str, str], words: str = "", pid: int = 0, who: str = "") -> Diagnosis:
    meaning = " ".join(cause.meaning.format(**groups).split()).rstrip(" :")
    return Diagnosis(cause.name, words, meaning, cause.next_step, cause.is_accident, pid, who)


def name_of(pid: int, fd: int = -1) -> str:
    """The name, the pid in the session, and the descriptor (-1: none) of the process; "" if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        return f"{procfs.stat(pid).name} (pid {procfs.session_pid(pid)}{f', fd {fd}' if fd >= 0 else ''})"
    return ""
