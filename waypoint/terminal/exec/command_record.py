"""The record of the command in a session's shell, kept in a file so that the next daemon can continue the command."""

import contextlib
import os
from collections.abc import Callable
from enum import StrEnum

import msgspec

from waypoint.model.conditions import Degradation
from waypoint.terminal.hooks.prompt import Shell

_SIZE = 4096  # bytes of the file: one page


class Phase(StrEnum):
    """A command's progress. A phase is saved before its first step, so a daemon that reads a phase must expect that
    steps of this phase were already taken.
    """

    ASKED = "asked"  # the key may have been sent
    STARTED = "started"  # the shell has printed the mark S; the terminal's modes may be changed, the command may run
    REPLACING = "replacing"  # the shell is lost: it may be killed, and the new shell may be at its prompt
    ENDED = "ended"  # the shell has printed the mark E; the modes may be restored, the shell may be at its prompt
    DONE = "done"  # all steps that involve the shell are taken


class End(msgspec.Struct, frozen=True):
    """How an exec ended: the content of the `x` frame (docs/protocol.md, section 2). `signal`: the last signal that was
    sent to the command at its timeout; "" if there was no timeout. `new_shell`: the command ended the session's shell,
    and a new shell replaces it. `state_lost`: the old shell left no complete state for the new shell. `code`: of the
    error (ERROR_CODES in model/conditions.py), if Waypoint failed. `degraded`: why Waypoint killed and replaced the
    shell, if it did.
    """

    exit: int
    by: str = "command"
    ended: bool = False
    said: str = ""
    signal: str = ""
    new_shell: bool = False
    state_lost: bool = False
    code: str = ""
    degraded: list[Degradation] = []


class ExecRecord(msgspec.Struct, kw_only=True):
    """One command. `start` and `stop` are positions in the terminal's ring: the command's output lies between them."""

    id: str
    nonce: str
    text: str  # the command's first line, shown to people
    tty: bool
    stdin: bool
    timeout_s: float | None
    asked_at: int
    phase: Phase = Phase.ASKED
    start: int | None = None
    stop: int | None = None
    output_processing: bool | None = None  # OPOST before the command
    child_faults: int | None = None  # page faults of the shell's ended children before the command (ShellWatch)
    deadline: float | None = None  # seconds of CLOCK_BOOTTIME
    stdin_open: bool = False
    half_line: int = 0
    new_shell: bool = False  # the command ended the shell, and the new shell does not have its state yet
    lost_shell: int = 0  # the pid, inside the session, of a shell that Waypoint replaces
    is_output_lost: bool = False  # the first part of the output was lost with the ring
    end: End | None = None


class State(msgspec.Struct, kw_only=True):
    """The content of a StateFile."""

    shell: Shell | None = None
    command: ExecRecord | None = None
    begun: list[str] = []  # ids of recent commands, so that a repeated request does not run a command twice


def carry_over(path: str, elapsed_s: float, processes: Callable[[], list[int]]) -> None:
    """Adapt the captured file `path` to the restored processes.

    The shell is looked up by its pid inside the session among `processes` (host pids). The command's deadline moves by
    `elapsed_s`, the seconds between capture and restore.
    """
    kept = StateFile(path)
    shell, command = kept.state.shell, kept.state.command
    if shell is not None:
        kept.state.shell = Shell.find(shell.inner_pid, shell.kind, processes)
    if command is not None and command.deadline is not None:
        command.deadline += elapsed_s
    kept.save()
    kept.close()


def begin_ring_anew(path: str, position: int) -> None:
    """Adapt the file `path` to a new ring that replaces a lost one: further output begins at `position`."""
    kept = StateFile(path)
    command = kept.state.command
    if command is not None:
        command.is_output_lost, command.asked_at = True, position
        command.start = None if command.start is None else position
        command.stop = None if command.stop is None else position
        kept.save()
    kept.close()


class StateFile:
    """The file with a State. It must survive a killed daemon, but not a reboot, so the file is never synced."""

    def __init__(self, path: str) -> None:
        """Open or create the file. `state` is the State that the previous daemon saved, or an empty State if the file
        cannot be parsed.
        """
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.state = State()
        with contextlib.suppress(msgspec.DecodeError):
            self.state = msgspec.json.decode(os.pread(self._fd, _SIZE, 0), type=State)

    def save(self) -> None:
        """Write `state`. Do nothing after `close`. The file is one page and is written by one call, so a killed daemon
        leaves either the old or the new content. This is 200 times faster than a new file and a rename, which matters
        since each command saves four times.
        """
        if self._fd < 0:
            return
        data = msgspec.json.encode(self.state)
        if len(data) > _SIZE:
            raise ValueError(f"the record of a command has {len(data)} bytes, more than {_SIZE}")
        os.pwrite(self._fd, data.ljust(_SIZE), 0)

    def move(self, path: str) -> None:
        """Write `state` to a new file at `path`. Later calls of `save` write to that file."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.close()
        self._fd = fd
        self.save()

    def save_command(self, record: ExecRecord) -> None:
        self.state.command = record
        self.save()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
