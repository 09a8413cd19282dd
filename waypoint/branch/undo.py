"""What taking back an operation means. Plans only: sessions are somebody else's."""

from typing import Literal, NamedTuple

from waypoint.model.errors import StateConflict
from waypoint.model.records import Aspect, Operation, Ref
from waypoint.store.names import Names

Act = Literal["end", "start", "restore"]


class Deed(NamedTuple):
    """What is to happen to a branch's session. `capture`: what it goes back to, for `restore`; `only`: that aspect."""

    act: Act
    branch: str
    capture: str | None = None
    only: Aspect | None = None


class Plan(NamedTuple):
    """First the deeds, then the names. `words`: all of it, for people."""

    deeds: list[Deed]
    names: dict[str, Ref | None]
    words: str


def plan(names: Names, operation: Operation) -> Plan:
    """How to take `operation` back as things are now. Raises StateConflict if it cannot be, with the reason."""
    deeds = [_deed(operation, branch, *states) for branch, states in sorted(operation.sessions.items())]
    if operation.undone:
        raise _impossible(operation, "it was taken back already")
    if operation.verb == "discard":
        raise _impossible(operation, "what the session wrote was thrown away")
    ends = {deed.branch for deed in deeds if deed.act == "end"}
    moves: dict[str, Ref | None] = {}
    for name, move in operation.moves.items():
        if names.ref(name) != move.after:
            raise _impossible(operation, f"{name} has been moved since")
        if name not in ends or move.before is None:  # what ends is kept, as the tip of a branch that stays
            moves[name] = move.before
    if not deeds and not moves:
        raise _impossible(operation, "it moved nothing")
    words = [_words_of_deed(deed) for deed in deeds]
    words += [_words_of(name, before) for name, before in moves.items()]
    return Plan(deeds, moves, ", ".join(words))


_WORDS = {"end": "end the session on", "start": "start again, from what was kept,", "restore": "bring back what was on"}


def _deed(operation: Operation, branch: str, before: bool, after: bool) -> Deed:  # noqa: FBT001 - a pair of states
    if before and after:
        return Deed("restore", branch, operation.replaced, operation.only)
    return Deed("start" if before else "end", branch)


def _words_of_deed(deed: Deed) -> str:
    only = f", its {deed.only} only" if deed.only else ""
    return f"{_WORDS[deed.act]} {deed.branch}{only}"


def _words_of(name: str, before: Ref | None) -> str:
    if before is None:
        return f"remove the name {name}"
    return f"let {name} be {(before.capture or 'nothing')[:12]} again"


def _impossible(operation: Operation, said: str) -> StateConflict:
    return StateConflict("take back", f"operation {operation.number} ({operation.verb})", said, "see 'waypoint op log'")
