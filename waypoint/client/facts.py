"""What the SDK's calls return, as records. Fields that a newer daemon adds are left out."""

from dataclasses import dataclass, field, fields
from typing import Literal, Self, TypedDict

from waypoint.model.errors import Failed

Tier = Literal["auto", "live", "respawn", "files"]
"""How faithfully a checkpoint is to keep the processes; `auto` is the best that can be had."""


class Setting(TypedDict, total=False):
    """What may be asked of a new session (docs/protocol.md, `POST /v1/sessions`). What is left out, the daemon decides.

    `from_name`: the branch or capture whose files it goes on from. `binds`: `HOST:PATH[:ro]`. `user`: a name or number.
    `env`: only what tells how the terminal speaks is taken. `command`: in place of the user's shell.
    """

    from_name: str
    base: str
    binds: list[str]
    net: Literal["private", "host", "none"]
    user: str
    cwd: str
    env: dict[str, str]
    rows: int
    cols: int
    command: list[str]


@dataclass(frozen=True, slots=True)
class Record:
    """Base of what can be made from a JSON object."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises Failed if `value` is no object or lacks a field."""
        try:
            if not isinstance(value, dict):
                raise TypeError(f"got {type(value).__name__}")
            return cls(**{one.name: value[one.name] for one in fields(cls) if one.name in value})
        except TypeError as error:
            raise Failed("understand", "the daemon", f"{cls.__name__}: {error}", "use one version of both") from error


@dataclass(frozen=True, slots=True)
class SessionFacts(Record):
    """A session; with `state` `ended` or `lost`, a branch that could be started again, of which little is known."""

    branch: str
    state: str
    created: str
    id: str | None = None
    pid: int | None = None
    uptime_s: float | None = None
    user: str | None = None
    base: str | None = None
    net: str | None = None
    cwd: str | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    upper_bytes: int | None = None
    attached: int | None = None
    left_out: list[str] | None = None
    capture: str | None = None
    degraded: list[str] | None = None


@dataclass(frozen=True, slots=True)
class DaemonStatus(Record):
    pid: int
    version: str
    home: str
    sessions: int
    started: str


@dataclass(frozen=True, slots=True)
class Capability(Record):
    """One row of `doctor`. `state`: ok, missing or degraded. `required_for`: session, live or optional."""

    name: str
    state: str
    why: str = ""
    remedy: str = ""
    required_for: str = "optional"


@dataclass(frozen=True, slots=True)
class Stopped(Record):
    """`capture`: where the files are kept (None: discarded). `exit`: the shell's status (None: it was killed by us)."""

    branch: str
    capture: str | None = None
    exit: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointFacts(Record):
    """`image`: null until it is in the store. `degraded`: what is not kept as faithfully as it might be, in words."""

    name: str
    capture: str
    image: str | None
    tier: str
    paused_ms: float
    total_ms: float
    durable: bool
    degraded: list[str]


@dataclass(frozen=True, slots=True)
class CaptureFacts(Record):
    """One moment of a session, as `GET /v1/captures` tells of it. `names`: checkpoints, and branches whose tip it is.

    `layers`: by aspect (files, processes, shell, terminal) what was kept of it, None where nothing was.
    """

    capture: str
    names: list[str]
    branch: str
    parents: list[str]
    tier: str
    reason: str
    message: str
    created: str
    base: str
    layers: dict[str, dict[str, object] | None]
    image: str | None = None
    durable: bool = False
    user: str = ""
    cwd: str = ""
    exit: int | None = None
    paused_ms: float | None = None
    degraded: list[str] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BranchFacts(Record):
    """`tip`: the capture that the branch goes on from, made at `captured`; None before its first."""

    name: str
    live: bool
    created: str
    tip: str | None = None
    tier: str | None = None
    captured: str | None = None


@dataclass(frozen=True, slots=True)
class OperationFacts(Record):
    """One entry of the operation log.

    `moves`: names with the captures that they stood for before and after. `sessions`: branches with whether they had a
    live session before and after. `undoes`: the operation that this one took back. `undo`: what taking this one back
    would do; None if it cannot be, for the reason in `said`.
    """

    number: int
    at: str
    verb: str
    moves: dict[str, tuple[str | None, str | None]]
    sessions: dict[str, tuple[bool, bool]]
    undone: bool
    undoes: int | None = None
    undo: str | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """`by`: whose code it is, `command` or `waypoint` (124: timeout). `ended`: the session ended with the command."""

    output: bytes
    exit: int
    by: str
    ended: bool


@dataclass(frozen=True, slots=True)
class RunResult:
    stdout: bytes
    stderr: bytes
    exit: int


def field_of(answer: object, name: str) -> object:
    """One field of an answer; None if it has none of this name."""
    return answer.get(name) if isinstance(answer, dict) else None


def list_of(answer: object, name: str) -> list[object]:
    """One field of an answer, which is a list; empty if it is none."""
    found = field_of(answer, name)
    return found if isinstance(found, list) else []
