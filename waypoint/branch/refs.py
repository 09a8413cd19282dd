"""Renaming branches, removing names, making one operation of several. None of that touches a session: a live branch
cannot be renamed or removed.
"""

from collections.abc import Collection, Sequence

from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.names import parse_name
from waypoint.store.names import Names


def rename(names: Names, branch: str, new: str, live: Collection[str]) -> None:
    """Rename a branch to `new`. `live`: the branches with a live session.

    Raises UnknownName, StateConflict if the branch is live, and as `Change.check_new`. After a failure nothing is
    renamed.
    """
    parse_name(new)
    with names.change("rename") as change:
        ref = change.ref(branch)
        if ref is None or ref.kind != "branch":
            raise UnknownName("rename", f"branch {branch}", "there is no such branch", "'waypoint branch' lists them")
        _check_dead("rename", branch, live)
        change.put(branch, None)
        change.check_new(new, "branch")
        change.create(new, ref)


def remove(names: Names, doomed: Sequence[str], live: Collection[str]) -> None:
    """Remove the names `doomed`, of branches and of checkpoints, all or none. The captures stay, and have their ids.

    `live`: the branches with a live session. Raises UnknownName, StateConflict for a live branch.
    """
    with names.change("remove") as change:
        for name in doomed:
            if change.ref(name) is None:
                raise UnknownName("remove", repr(name), "nothing has this name", "'waypoint log --all' lists them")
            _check_dead("remove", name, live)
            change.put(name, None)


def make_one(names: Names, verb: str, captures: Collection[str | None], before: int) -> None:
    """Log one operation, `verb`, in place of those after the number `before` that ended a session and made one of
    `captures` the tip of its branch: one undo takes all of them back. Does nothing if it is one operation already.
    """
    with names.change(verb) as change:
        ends = [one for one in change.operations_since(before) if one.sessions]
        parts = [one for one in ends if any(to.after and to.after.capture in captures for to in one.moves.values())]
        if len(parts) > 1:
            change.gather(parts)


def _check_dead(tried: str, branch: str, live: Collection[str]) -> None:
    if branch in live:
        next_step = f"park it first, which keeps its programs: waypoint checkpoint NAME -b {branch} --park"
        raise StateConflict(tried, f"branch {branch}", "it has a live session", next_step)
