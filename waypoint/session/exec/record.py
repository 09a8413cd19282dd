"""What is on record of a command line in flight, so that the next daemon can see it through."""

import contextlib
import os
from collections.abc import Callable
from enum import StrEnum

import msgspec

from waypoint.session.exec.prompt import Shell

_SIZE = 4096


class Phase(StrEnum):
    """How far a command has come. Written down before the step that it names is taken."""

    ASKED = "asked"  # the key may have been sent
    STARTED = "started"  # the shell has said S; the terminal's modes may be changed, the shell may have been let go
    ENDED = "ended"  # the shell has said E; the modes may be back, the shell may have been let go
    DONE = "done"  # nothing is left to do with the shell


class End(msgspec.Struct, frozen=True):
    """How an exec ended: the `x` frame (docs/protocol.md, section 2)."""

    exit: int
    by: str = "command"
    ended: bool = False
    said: str = ""


class ExecRecord(msgspec.Struct, kw_only=True):
    """Positions are those of the terminal's ring; `start` to `stop` is the command's output."""

    id: str
    nonce: str
    text: str  # its first line, for people
    tty: bool
    stdin: bool
    timeout_s: float | None
    asked_at: int
    phase: Phase = Phase.ASKED
    start: int | None = None
    stop: int | None = None
    output_processing: bool | None = None  # OPOST as it was before
    child_faults: int | None = None  # of the shell, before: if they grow it has had a job
    deadline: float | None = None  # of CLOCK_BOOTTIME
    stdin_open: bool = False
    half_line: int = 0
    end: End | None = None


class State(msgspec.Struct, kw_only=True):
    """The whole file: the shell, the last command, and which commands there were."""

    shell: Shell | None = None
    command: ExecRecord | None = None
    begun: list[str] = []  # ids of the last commands, so that none is run twice


def carry_over(path: str, elapsed_s: float, processes: Callable[[], list[int]]) -> None:
    """Fit what was put aside with a capture to the processes that were restored from it, `elapsed_s` seconds later."""
    kept = StateFile(path)
    shell, command = kept.state.shell, kept.state.command
    if shell is not None:
        kept.state.shell = Shell.find(shell.inner_pid, shell.kind, processes)
    if command is not None and command.deadline is not None:
        command.deadline += elapsed_s
    kept.save()
    kept.close()


class StateFile:
    """Where the State is kept. It is to survive a killed daemon; after a reboot it is of no use, so nothing is
    synced.
    """

    def __init__(self, path: str) -> None:
        """Open it, or make it. `state`: what the last daemon left; empty if it left nothing readable."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.state = State()
        with contextlib.suppress(msgspec.DecodeError):
            self.state = msgspec.json.decode(os.pread(self._fd, _SIZE, 0), type=State)

    def save(self) -> None:
        """Write `state`. One page in one call: a killed process leaves the old one or the new one. 200 times faster
        than a new file and a rename, on a disk; a command saves four times.
        """
        if self._fd < 0:
            return
        data = msgspec.json.encode(self.state)
        if len(data) > _SIZE:
            raise ValueError(f"the record of a command has {len(data)} bytes")
        os.pwrite(self._fd, data.ljust(_SIZE), 0)

    def save_command(self, record: ExecRecord) -> None:
        """The last command is now at this. Raises OSError."""
        self.state.command = record
        self.save()

    def close(self) -> None:
        """Leave it to the next daemon: `save` does nothing any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
