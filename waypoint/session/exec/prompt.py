"""Is the session's own shell sitting in its line editor? Asked of the kernel, without sending a byte.

What a shell looks like from outside in its many states was measured; the state at a prompt is unlike all others
except for what uses the line editor itself: continuation lines, `read -e`, `vared`, `select`. Those the hooks refuse.
"""

import contextlib
import termios
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum

from waypoint.linux import procfs, terminals

_NAME_MAX = 80


class Look(Enum):
    """What the probe saw."""

    PROMPT = "at its prompt"
    BUSY = "busy"
    REPLACED = "replaced by another program"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Shell:
    """The session's shell, as it was when it drew its first prompt."""

    pid: int
    start_ticks: int
    inner_pid: int
    kind: str  # "bash", "zsh"; "none": a bash whose line editor is off
    # exec(2) keeps the pid and moves these: a new program, even the same one again, does not know our key.
    executable: str
    code_start: int
    stack_start: int

    @classmethod
    def find(cls, inner_pid: int, kind: str, processes: Callable[[], list[int]]) -> "Shell | None":
        """The process that calls itself `inner_pid`, among `processes` (ids in our namespace); None if it is not
        there (any more).
        """
        for pid in processes():
            with contextlib.suppress(ProcessLookupError):
                if procfs.inner_pid(pid) == inner_pid:
                    stat = procfs.stat(pid)
                    program = procfs.executable(pid)
                    return cls(pid, stat.start_ticks, inner_pid, kind, program, stat.code_start, stat.stack_start)
        return None

    def to_json(self) -> dict[str, int | str]:
        return asdict(self)


def look(master: int, shell: Shell) -> Look:
    """Ask the kernel. Cheap (some 50 microseconds), safe at any moment."""
    try:
        stat = procfs.stat(shell.pid)
        if stat.start_ticks != shell.start_ticks or stat.state == "Z":
            return Look.GONE
        if (stat.code_start, stat.stack_start) != (shell.code_start, shell.stack_start):
            return Look.REPLACED
        if procfs.executable(shell.pid).removesuffix(" (deleted)") != shell.executable.removesuffix(" (deleted)"):
            return Look.REPLACED
        if terminals.foreground_group(master) != stat.group:
            return Look.BUSY
        return Look.PROMPT if _editing(terminals.modes(master), shell) else Look.BUSY
    except ProcessLookupError:
        return Look.GONE


def _editing(modes: terminals.Modes, shell: Shell) -> bool:
    """What tells it from `read -n` and `read -k`: readline clears ICRNL, zle switches the suspend key off."""
    bash = shell.kind == "bash"
    reads_keys = bool(modes.iflag & termios.ICRNL) if bash else modes.suspend is not None
    if modes.lflag & termios.ICANON or reads_keys:
        return False
    try:
        call = procfs.system_call(shell.pid)
    except PermissionError:
        return True  # not allowed to trace it: the terminal's word and the hooks' refusal must do
    if call is None or bash:
        return call == procfs.Call("pselect6", 1)
    # zsh reads a copy of the terminal above all fds that scripts use, or polls it together with `zle -F` handlers.
    return (call.name == "read" and call.first >= 10) or call.name in ("poll", "ppoll", "select", "pselect6")


def foreground(master: int, processes: list[int]) -> str:
    """What runs in the foreground, for a message: of all in the group the one that started last. "" if nothing does."""
    group = terminals.foreground_group(master)
    found: list[tuple[int, int]] = []
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            stat = procfs.stat(pid)
            if stat.group == group:
                found.append((stat.start_ticks, pid))
    return program(max(found)[1]) if found else ""


def program(pid: int) -> str:
    """The beginning of a process's command line, for a message; "" if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return " ".join(procfs.command_line(pid))[:_NAME_MAX] or procfs.stat(pid).name
    return ""


def has_foreground(master: int, shell: Shell) -> bool:
    """True if the shell's own group is the terminal's foreground."""
    with contextlib.suppress(ProcessLookupError):
        return terminals.foreground_group(master) == procfs.stat(shell.pid).group
    return False
