"""Requests and answers of the control interface, as typed records. Unknown fields are refused.

The daemon decodes into these and makes its OpenAPI document from them. The client does not import this module (it must
start fast).
"""

from typing import Annotated, Literal

import msgspec

Cells = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""Rows or columns of a terminal, as the kernel holds them (struct winsize)."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all request bodies."""


class StartRequest(Request, frozen=True):
    branch: str
    from_name: str | None = None
    base: str | None = None
    binds: list[str] = []
    net: Literal["private", "host", "none"] | None = None
    user: str | None = None
    default_user: str | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    rows: Cells = 24
    cols: Cells = 80
    command: list[str] = []


class StopRequest(Request, frozen=True):
    """`checkpoint`: the name of a checkpoint to be made first."""

    discard: bool = False
    checkpoint: str | None = None


class CheckpointRequest(Request, frozen=True):
    """`tier`: `auto` is the best that can be had; `respawn` is none that this version knows."""

    name: str
    message: str = ""
    tier: Literal["auto", "live", "respawn", "files"] = "auto"
    force: bool = False
    park: bool = False


class RestoreRequest(Request, frozen=True):
    """`name`: a checkpoint, a branch, a capture's id or a unique prefix of one."""

    name: str
    only: Literal["files", "shell"] | None = None


class ForkRequest(Request, frozen=True):
    """Either `branches`, or `count` of them, named `<prefix>-1` and so on (`prefix`: default `name`)."""

    name: str
    branches: list[str] = []
    count: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    prefix: str | None = None


class RenameRequest(Request, frozen=True):
    to: str


class RemoveRequest(Request, frozen=True):
    names: list[str]


class UndoRequest(Request, frozen=True):
    """`number`: of the operation; null: the last one that was not taken back yet."""

    number: Annotated[int, msgspec.Meta(ge=1)] | None = None


class AttachRequest(Request, frozen=True):
    rows: Cells = 24
    cols: Cells = 80


class ExecRequest(Request, frozen=True):
    """Either `text` (a new command) or `resume` and `offset` (go on with one whose stream was cut).

    `id`: the client's own name for the command. Asked again with it after a cut, the daemon goes on with the command
    if it has begun, and never runs it twice.
    """

    text: str = ""
    tty: bool = False
    stdin: bool = False
    timeout_s: Seconds | None = None
    wait_prompt_s: Seconds = 5.0
    id: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{16})?$")] = ""
    resume: str | None = None
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0


class RunRequest(Request, frozen=True):
    argv: list[str]
    tty: bool = False
    stdin: bool = False
    rows: Cells = 24
    cols: Cells = 80
    cwd: str | None = None
    env: dict[str, str] = {}


class LogsRequest(Request, frozen=True):
    follow: bool = False


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One session, or (`ended`, `lost`) a branch that could be started again, as the interface shows it.

    `degraded`: in the answer to a restore, what of it could not be brought back, in words.
    """

    branch: str
    state: Literal["live", "ended", "lost"]
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


class LayerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One aspect that a capture has kept. `digest` is null until it is in the store."""

    size_bytes: int | None
    digest: str | None = None


class ProcessFacts(LayerFacts, frozen=True, kw_only=True):
    count: int
    programs: list[str]
    frozen_ms: float
    criu: str


class TerminalFacts(LayerFacts, frozen=True, kw_only=True):
    rows: int
    cols: int


class LayersFacts(msgspec.Struct, frozen=True, kw_only=True):
    files: LayerFacts
    processes: ProcessFacts | None = None
    shell: LayerFacts | None = None
    terminal: TerminalFacts | None = None


class CaptureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One capture. `image`: null until it is in the store. `names`: checkpoints, and branches whose tip it is."""

    capture: str
    image: str | None
    names: list[str]
    branch: str
    parents: list[str]
    tier: Literal["live", "files"]
    reason: str
    message: str
    created: str
    durable: bool
    base: str
    user: str
    cwd: str
    exit: int | None
    paused_ms: float | None
    degraded: list[str]
    environment: list[str]
    machine: dict[str, str]
    layers: LayersFacts


class CheckpointFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint acknowledges."""

    name: str
    capture: str
    image: str | None
    tier: Literal["live", "files"]
    paused_ms: float
    total_ms: float
    durable: bool
    degraded: list[str]


class ForkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One of the sessions that a fork made. `ms`: from the request until it ran."""

    branch: str
    pid: int
    ms: float


class BranchFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    tip: str | None
    live: bool
    tier: Literal["live", "files"] | None
    created: str
    captured: str | None


class OperationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the operation log. `moves`: names with what they stood for before and after (null: nothing).

    `undoes`: the number of the operation that this one took back. `undo`: what taking this one back would do; null if
    it cannot be, for the reason in `said`.
    """

    number: int
    at: str
    verb: str
    moves: dict[str, tuple[str | None, str | None]]
    sessions: dict[str, tuple[bool, bool]]
    undone: bool
    undoes: int | None
    undo: str | None
    said: str


class StatusFacts(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    version: str
    home: str
    sessions: int
    started: str


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `doctor`: what was tried, whether it works, why not, what to do."""

    name: str
    state: Literal["ok", "missing", "degraded"]
    why: str = ""
    remedy: str = ""
    required_for: Literal["session", "live", "optional"] = "optional"
