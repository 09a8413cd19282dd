"""Answers of the control interface about differences, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import Literal, TypedDict


class SideFacts(TypedDict):
    """One side of a comparison. `name`: as it was asked for, `base` for what is under a session. `capture`: its id,
    null for a live session and the base.
    """

    name: str
    capture: str | None
    live: bool


class FileFacts(TypedDict, total=False):
    """A name that differs.

    `path`: absolute, in the session; bytes that are no UTF-8 are lone surrogates (PEP 383). `change`: what it is in the
    second of the two; `metadata`: owner, permissions or extended attributes alone. `type`: `file`, `folder`, `link`,
    `device`, `fifo`, `socket`; of what is removed, what it was. `old_size`, `new_size`: bytes of a file, else null.
    `source`: where a folder of the base has been before it was moved here. `whole`: the folder stands for all in it.
    `patch`: the unified diff, "" if its text is the same; null, with the reason in `no_patch`, if it is not made.
    """

    path: str
    change: Literal["added", "changed", "removed", "retyped", "metadata"]
    type: str
    old_size: int | None
    new_size: int | None
    source: str | None
    whole: bool
    patch: str | None
    no_patch: str


class ProgramsFacts(TypedDict):
    """Command lines, without secrets, of what runs in one of the two alone."""

    removed: list[str]
    added: list[str]


class EnvironmentFacts(TypedDict):
    """Names of variables that the shells hand on. Their values are not told."""

    removed: list[str]
    added: list[str]
    changed: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffLine:
    """One line of an answer. `kind`: `begin` (`one`, `other`, `base`: the folder of the machine that both are over),
    `processes`, `environment` (not there if they are not known of both), `files` (`changes`: some of the files, sorted
    by path), at last `end` (`files`: how many), or `error`.
    """

    kind: Literal["begin", "processes", "environment", "files", "end", "error"]
    one: SideFacts | None = None
    other: SideFacts | None = None
    base: str | None = None
    processes: ProgramsFacts | None = None
    environment: EnvironmentFacts | None = None
    changes: list[FileFacts] | None = None
    files: int | None = None
    error: dict[str, str | int] | None = None
