"""The answer of the control interface about the machine's files, as records (model/facts). Standard library only."""

from dataclasses import dataclass
from typing import TypedDict


class FileLine(TypedDict):
    """`path`: in the session. `said`: what is done to it, or what forbids that, in words."""

    path: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFacts:
    """What putting a branch's changes onto the machine has done, or would do.

    `applied`: whether the machine has them now. `files`: how many files and folders change; a new folder counts as one.
    `changes`: the first thousand of them. `setid`: the files among them that run with the rights of their owner or
    group, or with capabilities. `conflicts`: the first thousand places, of `conflicts_total`, where the machine has
    changed since the branch began, or that cannot be applied: then nothing was done. `fixed`: how many of them `force`
    leaves. `replaced`: the first thousand paths of what the machine has changed since, and `force` has replaced; the
    undo brings it back. `base`: the folder of the machine that is the session's root. `operation`: its number in the
    operation log, by which it is taken back; null if nothing was done. `capture`: the capture whose files these are;
    null for a live session that was only looked at. `dry_run`: it was only to be told.
    """

    applied: bool
    files: int
    changes: list[FileLine]
    setid: list[str]
    conflicts: list[FileLine]
    conflicts_total: int
    fixed: int
    replaced: list[str]
    base: str
    operation: int | None
    capture: str | None
    dry_run: bool
