"""The probe for the shell's prompt: find out from the kernel whether the session's shell waits in its line editor,
without sending a byte.

Measurements of shells in many states have shown that the kernel's data (terminal modes, system call) tell a prompt from
every other state, except those in which the shell also uses its line editor: continuation lines, `read -e`, `vared`,
`select`. In these states the hooks refuse a request.
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
    """The session's shell process, as it was when the shell printed its first prompt."""

    pid: int
    start_ticks: int
    inner_pid: int
    kind: str  # "bash", "zsh"; "none": a bash whose line editor is off
    # execve(2) keeps the pid but changes the following three. The new program, even if it is the same shell again, has
    # no hooks.
    executable: str
    code_start: int
    stack_start: int

    @classmethod
    def find(cls, inner_pid: int, kind: str, processes: Callable[[], Iterable[int]]) -> "Shell | None":
        """Find the process that has pid `inner_pid` inside the session among `processes` (pids as the host sees them).
        Return None if there is no such process.
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
    """Probe the state of `shell` on the terminal whose master side is `master`. Takes about 50 microseconds."""
    try:
        stat = procfs.stat(shell.pid)
        # The kernel frees the memory of a killed process, and so clears these addresses, before the process is a
        # zombie.
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
    """Return a text that identifies the program of a process: the end of its path, in ASCII. The length is limited so
    that the record of a shell (exec/command_record.py) has room for the path, whatever the session's folders are named.
    """
    return ascii(procfs.executable(pid).removesuffix(" (deleted)"))[1:-1][-_PATH_MAX:]


def _editing(modes: terminals.Modes, shell: Shell) -> bool:
    """True if the terminal's modes and the shell's current system call show that the shell reads keys in its line
    editor.

    The modes tell the line editor from `read -n` and `read -k`: bash's readline clears ICRNL, and zsh's zle disables
    the suspend key.
    """
    bash = shell.kind == "bash"
    reads_keys = bool(modes.iflag & termios.ICRNL) if bash else modes.suspend is not None
    if modes.lflag & termios.ICANON or reads_keys:
        return False
    try:
        call = procfs.system_call(shell.pid)
    except PermissionError:
        # The daemon may not read the shell's system call, so only the terminal's modes are known. If they mislead, the
        # shell's hooks refuse the request.
        return True
    if call is None or bash:
        return call == procfs.BlockingCall("pselect6", 1)
    # zsh reads from a duplicate of the terminal's fd, numbered 10 or higher, or polls it together with the descriptors
    # of `zle -F` handlers.
    return (call.name == "read" and call.first >= 10) or call.name in ("poll", "ppoll", "select", "pselect6")


def foreground(master: int, processes: Iterable[int]) -> str:
    """Name the newest of `processes` in the terminal's foreground group, for a message. "" if there is none."""
    group = terminals.foreground_group(master)
    found: list[tuple[int, int]] = []
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            stat = procfs.stat(pid)
            if stat.group == group:
                found.append((stat.start_ticks, pid))
    return program(max(found)[1]) if found else ""


def program(pid: int) -> str:
    """Return the beginning of a process's command line, for a message. "" if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        return cleaned(" ".join(procfs.command_line(pid))[:_NAME_MAX] or procfs.stat(pid).name)
    return ""


def has_foreground(master: int, shell: Shell) -> bool:
    """True if the shell's process group is the foreground group of the terminal."""
    with contextlib.suppress(ProcessLookupError):
        return terminals.foreground_group(master) == procfs.stat(shell.pid).group
    return False
