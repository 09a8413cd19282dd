"""From the daemon's answers to records (`waypoint.model.facts`), and the records that are the SDK's alone."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, TypedDict, TypeVar

from waypoint.client.wire import nonsense

EXIT_TIMEOUT, EXIT_FAILED = 124, 125
Record = TypeVar("Record")
"""One of the dataclasses of `waypoint.model.facts`."""

WantedTier = Literal["auto", "live", "respawn", "files"]
"""How faithfully a checkpoint is to keep the processes; `auto` is the best that can be had."""


class StartOptions(TypedDict, total=False):
    """What may be asked of a new session (docs/protocol.md, `POST /v1/sessions`). What is left out, the daemon decides.

    `from_name`: the branch or capture whose files it goes on from. `binds`: `HOST:PATH[:ro]`. `user`: a name or number.
    `cwd`: a folder that the session must have. `shell`: the path or name of a shell. `env`: of it only the terminal's
    type, language and time zone are taken. `command`: what runs in place of the user's shell. `allow`: what the session
    may do beyond the usual. `allow_net`: the only names and networks that it may reach. `memory`, `disk`: limits in
    bytes; `cpus`: in processors; `pids`: in processes and threads.
    """

    from_name: str
    base: str
    binds: list[str]
    net: Literal["private", "host", "none"]
    user: str
    cwd: str
    shell: str
    env: dict[str, str]
    rows: int
    cols: int
    command: list[str]
    allow: list[Literal["userns"]]
    allow_net: list[str]
    memory: int
    cpus: float
    pids: int
    disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a command has ended. `by`: whose code `exit` is, `command` or `waypoint`. `said`: why, in words, if there is
    more to say than the code. `ended`: the session ended with it.
    """

    exit: int
    by: str
    said: str = ""
    ended: bool = False

    @property
    def timed_out(self) -> bool:
        """Waypoint has ended the command at its timeout."""
        return self.by == "waypoint" and self.exit == EXIT_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult(Ending):
    """What a command line printed, and how it ended. `signal`: the last signal that it got at its timeout, such as
    `INT` or `KILL`; "": none. `new_shell`: it has ended the session's shell (`cd x || exit 1`), and a new one with the
    state of that one has taken its place. `state_lost`: without that state, which could not be written or is too large.
    """

    output: bytes
    signal: str = ""
    new_shell: bool = False
    state_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Ending):
    """What a process in the session printed, and how it ended."""

    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Work that the daemon does without a client that waits for it (docs/protocol.md, section 1).

    `state`: `running`, `done`, `failed` or `cancelled`. `result`: what the work has given; `error`: the parts of the
    error that it has failed with. Lists have no results.
    """

    id: str
    kind: str
    state: str
    started: str
    ended: str | None
    progress: dict[str, int | None]
    result: object = None
    error: dict[str, str | int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedProcess:
    """A process of a live session, and the tier that a capture would reach if there were only this one. `pid`: as the
    session sees it. `command`: without secrets. `why`: in words, why not `live`, and `remedy` what to do then; else "".
    """

    pid: int
    command: str
    tier: Literal["live", "respawn", "files"]
    why: str
    remedy: str


def how_ended(end: Mapping[str, object]) -> Ending:
    """The fields of an `x` frame."""
    code = end.get("exit")
    return Ending(
        exit=code if isinstance(code, int) else EXIT_FAILED,
        by=str(end.get("by", "command")),
        said=str(end.get("said") or ""),
        ended=end.get("ended") is True,
    )


def parse(kind: type[Record], value: object) -> Record:
    """The JSON object `value` as a record; fields that a newer daemon adds are left out.

    Raises Failed if `value` is no object or lacks a field.
    """
    try:
        if not isinstance(value, dict):
            raise TypeError(f"got {type(value).__name__}")
        names = [one.name for one in fields(kind)]  # type: ignore[arg-type]  # a TypeVar cannot be bound to them
        return kind(**{name: value[name] for name in names if name in value})
    except TypeError as error:
        raise nonsense(f"no {kind.__name__}: {error}") from error


def parse_list(kind: type[Record], answer: object, name: str) -> list[Record]:
    """The list in the field `name` of an answer, as records; empty if there is none. Raises as `parse`."""
    found = field_of(answer, name)
    return [parse(kind, item) for item in found] if isinstance(found, list) else []


def field_of(answer: object, name: str) -> object:
    """One field of an answer; None if the answer has none of this name."""
    return answer.get(name) if isinstance(answer, dict) else None
