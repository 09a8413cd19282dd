"""From the daemon's answers to records (`waypoint.model.facts`), and the records that are the SDK's alone."""

from dataclasses import dataclass, fields
from typing import Literal, TypedDict, TypeVar

from waypoint.model.errors import Failed

Record = TypeVar("Record")
"""One of the dataclasses of `waypoint.model.facts`."""

WantedTier = Literal["auto", "live", "respawn", "files"]
"""How faithfully a checkpoint is to keep the processes; `auto` is the best that can be had."""


class StartOptions(TypedDict, total=False):
    """What may be asked of a new session (docs/protocol.md, `POST /v1/sessions`). What is left out, the daemon decides.

    `from_name`: the branch or capture whose files it goes on from. `binds`: `HOST:PATH[:ro]`. `user`: a name or number.
    `cwd`: a folder that the session must have. `shell`: the path or name of a shell. `env`: only what tells how the
    terminal speaks is taken. `command`: in place of the user's shell.
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


@dataclass(frozen=True, slots=True)
class ExecResult:
    """`by`: whose code it is, `command` or `waypoint` (124: timeout). `ended`: the session ended with the command.
    `signal`: the last signal that the command got at its timeout, such as `INT` or `KILL`; "": none.
    """

    output: bytes
    exit: int
    by: str
    ended: bool
    signal: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a process in the session printed, and its exit status."""

    stdout: bytes
    stderr: bytes
    exit: int


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
        raise Failed("understand", "the daemon", f"{kind.__name__}: {error}", "use one version of both") from error


def parse_list(kind: type[Record], answer: object, name: str) -> list[Record]:
    """The list in the field `name` of an answer, as records; empty if there is none. Raises as `parse`."""
    found = field_of(answer, name)
    return [parse(kind, item) for item in found] if isinstance(found, list) else []


def field_of(answer: object, name: str) -> object:
    """One field of an answer; None if the answer has none of this name."""
    return answer.get(name) if isinstance(answer, dict) else None
