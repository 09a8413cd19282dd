"""The probe for the shell's prompt: asks the kernel whether the session's shell sits in its line editor, without
sending a byte.

The kernel's view of a shell in its many states was measured. The state at a prompt differs from all others but those
that use the line editor too: continuation lines, `read -e`, `vared`, `select`. In these the hooks refuse a request.
"""

import contextlib
import termios
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import Enum

from waypoint.linux.tasks import procfs
from waypoint.linux.tty import terminals
from waypoint.model.errors import cleaned

_NAME_MAX = 80
_PATH_MAX = 400


class Look(Enum):
    """The states of a shell that the probe distinguishes."""

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
    # execve(2) keeps the pid but changes the rest: a new program, even the same shell again, has no hooks for the key.
    executable: str
    code_start: int
    stack_start: int

    @classmethod
    def find(cls, inner_pid: int, kind: str, processes: Callable[[], Iterable[int]]) -> "Shell | None":
        """The process that has pid `inner_pid` inside the session, among `processes` (pids as the host sees them); None
        if there is no such process.
        """
        for pid in processes():
            with contextlib.suppress(ProcessLookupError):
                if procfs.inner_pid(pid) == inner_pid:
                    stat = procfs.stat(pid)
                    program = _program_of(pid)
                    return cls(pid, stat.start_ticks, inner_pid, kind, program, stat.code_start, stat.stack_start)
        return None

    def to_json(self) -> dict[str, int | str]:
        return asdict(self)


def look(master: int, shell: Shell) -> Look:
    """Probe the state of `shell` on the terminal behind `master`. Costs about 50 microseconds; safe at any moment."""
    try:
        stat = procfs.stat(shell.pid)
        # A process that is being killed has given up its memory, and with it these addresses, before it is a zombie.
        is_ending = stat.state in "ZX" or (shell.stack_start and not stat.stack_start)
        if stat.start_ticks != shell.start_ticks or is_ending:
            return Look.GONE
        if (stat.code_start, stat.stack_start) != (shell.code_start, shell.stack_start):
            return Look.REPLACED
        if _program_of(shell.pid) != shell.executable.removesuffix(" (deleted)"):
            return Look.REPLACED
        if terminals.foreground_group(master) != stat.group:
            return Look.BUSY
        return Look.PROMPT if _editing(terminals.modes(master), shell) else Look.BUSY
    except ProcessLookupError:
        return Look.GONE


def _program_of(pid: int) -> str:
    """A text that identifies the program of a process: its path in ASCII, cut so that the record of a shell
    (exec/command_record.py) can hold it, whatever names the session's user gives to folders.
    """
    return ascii(procfs.executable(pid).removesuffix(" (deleted)"))[1:-1][-_PATH_MAX:]


def _editing(modes: terminals.Modes, shell: Shell) -> bool:
    """True if the shell reads keys in its line editor, by the terminal's modes and the shell's system call.

    The modes distinguish the editor from `read -n` and `read -k`: readline clears ICRNL, zle switches the suspend key
    off.
    """
    bash = shell.kind == "bash"
    reads_keys = bool(modes.iflag & termios.ICRNL) if bash else modes.suspend is not None
    if modes.lflag & termios.ICANON or reads_keys:
        return False
    try:
        call = procfs.system_call(shell.pid)
    except PermissionError:
        return True  # the process may not be traced: trust the modes, and the hooks' refusal
    if call is None or bash:
        return call is not None and call[:2] == ("pselect6", 1)
    # zsh reads from a copy of the terminal at fd 10 or higher, or polls that copy together with `zle -F` handlers.
    return (call.name == "read" and call.first >= 10) or call.name in ("poll", "ppoll", "select", "pselect6")


def foreground(master: int, processes: Iterable[int]) -> str:
    """The foreground program for a message: the newest of `processes` in the foreground group; "" if there is none."""
    group = terminals.foreground_group(master)
    found: list[tuple[int, int]] = []
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            stat = procfs.stat(pid)
            if stat.group == group:
                found.append((stat.start_ticks, pid))
    return program(max(found)[1]) if found else ""


def program(pid: int) -> str:
    """The beginning of a process's command line, for a message; "" if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        return cleaned(" ".join(procfs.command_line(pid))[:_NAME_MAX] or procfs.stat(pid).name)
    return ""


def has_foreground(master: int, shell: Shell) -> bool:
    """True if the shell's own group is the terminal's foreground."""
    with contextlib.suppress(ProcessLookupError):
        return terminals.foreground_group(master) == procfs.stat(shell.pid).group
    return False
