"""What the SDK's calls return, as records. Fields that a newer daemon adds are left out."""

from dataclasses import dataclass, fields
from typing import Literal, Self, TypedDict

from waypoint.model.errors import Failed


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
            return cls(**{field.name: value[field.name] for field in fields(cls) if field.name in value})
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
