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
    cwd: str | None = None
    env: dict[str, str] = {}
    rows: Cells = 24
    cols: Cells = 80
    command: list[str] = []


class StopRequest(Request, frozen=True):
    discard: bool = False


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
    """One session, or (`ended`, `lost`) a branch that could be started again, as the interface shows it."""

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
