"""Renaming, moving and removing names. Sessions continue: a live branch cannot be renamed or removed."""

from collections.abc import Collection, Sequence

import msgspec

from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.names import parse_name
from waypoint.model.records import Capture, Ref
from waypoint.records.names import Names


def rename(names: Names, branch: str, new: str, live: Collection[str]) -> None:
    """Rename a branch to `new`. `live`: the branches with a live session. Raises UnknownName, StateConflict."""
    parse_name(new)
    with names.change("rename") as change:
        ref = change.ref(branch)
        if ref is None or ref.kind != "branch":
            said = f"there is no such branch{change.did_you_mean(branch, 'branch')}"
            raise UnknownName("rename", f"branch {branch}", said, "'waypoint branch' lists all branches")
        _check_dead("rename", branch, live)
        change.put(branch, None)
        change.check_new(new, "branch")
        change.create(new, ref)


def remove(names: Names, chosen: Sequence[str], live: Collection[str]) -> None:
    """Remove the names `chosen`, of branches and checkpoints, all or none; their captures stay. `live`: the branches
    with a live session. Raises UnknownName, StateConflict for a live branch.
    """
    with names.change("remove") as change:
        for name in chosen:
            if change.ref(name) is None:
                raise UnknownName("remove", repr(name), "nothing has this name", "'waypoint log --all' lists all names")
            _check_dead("remove", name, live)
            change.put(name, None)


def move(names: Names, name: str, seen: Ref, capture: Capture, verb: str) -> None:
    """Record a capture, and let `name` stand for it. Raises StateConflict if it does not stand for `seen` any more."""
    with names.change(verb) as change:
        if change.ref(name) != seen:
            said = "another operation has just changed the name"
            raise StateConflict(verb, f"{seen.kind} {name}", said, "try again")
        change.add(capture)
        change.put(name, msgspec.structs.replace(seen, capture=capture.id))


def _check_dead(tried: str, branch: str, live: Collection[str]) -> None:
    if branch in live:
        next_step = f"stop it first: waypoint stop {branch}"
        raise StateConflict(tried, f"branch {branch}", "it has a running session", next_step, code="live")
