"""What is on record of a command line in flight, so that the next daemon can see it through."""

import contextlib
from enum import StrEnum

import msgspec

from waypoint.linux import files
from waypoint.session.prompt import Shell


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


def load(path: str) -> State:
    """What the last daemon left; an empty State if it left nothing, or nothing readable."""
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError), open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=State)
    return State()


def save(path: str, state: State) -> None:
    """By rename, without syncing: it is to survive a killed daemon; after a reboot it is of no use."""
    files.publish(path, msgspec.json.encode(state), durable=False)
