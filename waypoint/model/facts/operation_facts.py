"""Answers about the operation log, as records (model/facts). Standard library only."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFacts:
    """One entry of the operation log.

    `moves`: names with the captures that they stood for before and after (None: nothing). `sessions`: branches with
    whether they had a live session before and after. `undoes`: the number of the operation that this one took back.
    `undo`: what taking this one back would do; None if it cannot be taken back, for the reason in `said`. `note`: what
    it did besides moving names and sessions, in words.
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
    note: str = ""

    @property
    def ended(self) -> list[str]:
        """The branches whose sessions it has ended."""
        return [branch for branch, (before, after) in self.sessions.items() if before and not after]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneFacts:
    """The operation that an undo took back. `at`, `by`: when it was done, and by whom, in words. `undo`: what taking it
    back did, in words. `lost`: what it has not brought back, in words. `degraded`: in words, what was not kept
    of sessions that the undo replaced or ended, and what could not be brought back as it was. `removed`: the names that
    an undo has removed which changed no session. `replaced`: the first thousand paths of the machine that somebody had
    changed since, and that are as before the operation all the same; the undo of the undo brings back what they had.
    """

    number: int
    verb: str
    undo: str
    lost: list[str]
    degraded: list[str]
    at: str = ""
    by: str = ""
    removed: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoFacts:
    """The answer to an undo. `operation`: the entry that the undo made in the operation log; None if it was only to be
    told what the undo would do.
    """

    operation: OperationFacts | None
    undone: UndoneFacts
