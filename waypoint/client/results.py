"""Converting the daemon's answers to records (`waypoint.model.facts`), and the records that only the SDK has."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypedDict, TypeVar

from waypoint.client.wire import malformed
from waypoint.model.session_facts import ConditionFacts, PortFacts

EXIT_TIMEOUT, EXIT_FAILED = 124, 125
Record = TypeVar("Record")
"""One of the dataclasses of `waypoint.model.facts`."""

WantedTier = Literal["auto", "live", "respawn", "files"]
"""How completely a checkpoint has to keep the processes, or a restore to bring them back; `auto`: as completely as
possible.
"""


class Limits(TypedDict, total=False):
    """Limits of a session: `memory` and `disk` in bytes, `cpus` in processors, `pids` in processes and threads."""

    memory: int
    cpus: float
    pids: int
    disk: int


class StartOptions(Limits, total=False):
    """Options of a new session (docs/protocol.md, `POST /v1/sessions`). The daemon chooses those that are missing.

    `from_name`: continue from the files of this branch or capture. `base`: the name of a pinned base, or an
    absolute path. `binds`: `HOST:PATH[:ro]`. `user`: a name or number. `cwd`: a directory that exists in the
    session. `shell`: the path or name of a shell. `env`: only the type of the terminal, language and time zone are
    used. `command`: runs in place of the shell. `allow`: additional rights. `allow_net`: the only names and
    networks that the session can reach. `auto`: make points at prompts, to which `rewind` can return. `idle_park`,
    `ttl`: park the session when nobody has used it for so many seconds, and so many seconds after its start; 0:
    never. `publish`: `[ADDRESS:]HOST:SESSION`, ports of the machine that lead to ports of the session.
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
    auto: bool
    idle_park: float
    ttl: float
    publish: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a command ended. `by`: whose code `exit` is, `command` or `waypoint`. `said`: the reason in words, if there
    is one. `ended`: whether the session ended with it.
    """

    exit: int
    by: str
    said: str = ""
    ended: bool = False

    @property
    def timed_out(self) -> bool:
        """Whether Waypoint ended the command at its timeout."""
        return self.by == "waypoint" and self.exit == EXIT_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult(Ending):
    """The output and end of a command line. `signal`: the last signal sent at its timeout, such as `INT` or `KILL`; "":
    none. `new_shell`: the command ended the session's shell (`cd x || exit 1`), and a new shell with its state replaced
    it. `state_lost`: without that state, which could not be written or is too large. `degraded`: why Waypoint itself
    has ended the shell. `code`: of the error, if Waypoint could not run the command or has lost it
    (docs/conditions.md).
    """

    output: bytes
    signal: str = ""
    new_shell: bool = False
    state_lost: bool = False
    code: str = ""
    degraded: list[ConditionFacts] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Ending):
    """The output and end of a process in the session."""

    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Work that the daemon does in the background (docs/protocol.md, section 1).

    `state`: `running`, `done`, `failed` or `cancelled`. `result`: the result, but None in lists; `error`: the parts of
    the error if it failed.
    """

    id: str
    kind: str
    state: str
    started: str
    ended: str | None
    progress: dict[str, int | None]
    result: object = None
    error: dict[str, str | int] | None = None


def how_ended(end: Mapping[str, object]) -> Ending:
    """The ending in the fields of an `x` frame."""
    code = end.get("exit")
    return Ending(
        exit=code if isinstance(code, int) else EXIT_FAILED,
        by=str(end.get("by", "command")),
        said=str(end.get("said") or ""),
        ended=end.get("ended") is True,
    )


def parse(kind: type[Record], value: object) -> Record:
    """Convert the JSON object `value` to a record. Fields that this version does not know are ignored. Raises Failed if
    `value` is not an object or lacks a field.
    """
    try:
        if not isinstance(value, dict):
            raise TypeError(f"got {type(value).__name__}")
        names = [one.name for one in fields(kind)]  # type: ignore[arg-type]  # a TypeVar cannot be bound to them
        return kind(**{name: value[name] for name in names if name in value})
    except TypeError as error:
        raise malformed(f"something other than a {kind.__name__}: {error}") from error


def parse_list(kind: type[Record], answer: object, name: str) -> list[Record]:
    """The list in the field `name` of an answer, as records; empty if there is none."""
    found = field_of(answer, name)
    return [parse(kind, item) for item in found] if isinstance(found, list) else []


def conditions_in(answer: object) -> list[ConditionFacts]:
    """The conditions in the field `degraded` of an answer; none if it is missing."""
    found = field_of(answer, "degraded")
    return found if isinstance(found, list) else []


def ports_in(answer: object) -> list[PortFacts]:
    """The ports in the field `ports` of an answer; none if it is missing."""
    found = field_of(answer, "ports")
    return found if isinstance(found, list) else []


def field_of(answer: object, name: str) -> object:
    """One field of an answer; None if it is missing."""
    return answer.get(name) if isinstance(answer, dict) else None
