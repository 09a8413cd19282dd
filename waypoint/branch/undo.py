"""Undo of an operation: planning its steps, and moving names. session/undo.py carries out the steps on sessions."""

from collections.abc import Callable
from typing import NamedTuple

from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.names import DEFAULT_BRANCH, in_order
from waypoint.model.records import Aside, Caller, Capture, Deed, Intent, Login, Operation, ProgramsLayer, Ref
from waypoint.records.change import Change
from waypoint.records.reading import Reader, belongs_to

Lookup = Callable[[str], Ref | None]
"""Looks up what a name stands for: `Names.ref`, `Change.ref`, or the `get` of a dict from `Names.refs`."""


IDLE_PARK, RETURN, DISCARD = "idle-park", "return", "discard"
BY_ITSELF = frozenset({IDLE_PARK, RETURN})
"""The verbs of operations that park an unused session and bring it back. 'undo' without a number leaves them out."""


class Plan(NamedTuple):
    """The steps of an undo: first the `deeds` on sessions, then the moves of `names` (None: remove the name).

    `seen`: what these names stood for when the plan was made. `words`: all steps, as text for people.
    """

    deeds: list[Deed]
    names: dict[str, Ref | None]
    seen: dict[str, Ref | None]
    words: str


def is_of(operation: Operation, branch: str | None, caller: Caller | None, has_ended: Callable[[Login], bool]) -> bool:
    """Whether `undo` on `branch` may choose the operation: it is on this branch and on no other session, or its caller
    worked on this branch.

    `branch` None: whether `undo` by `caller` may choose it. It may if the same user requested it, without a branch,
    in the same login or in a login that `has_ended`; if a process of the default branch requested it; or if it has no
    caller and is on the default branch. So a user never undoes an operation of another login that still exists.
    `caller` None: the daemon itself undoes, and may choose every operation.
    """
    by = operation.by
    if branch is not None:
        return _is_on(operation, branch) or (by is not None and by.branch == branch)
    if caller is None:
        return True
    if by is None:
        return _is_on(operation, DEFAULT_BRANCH)
    if by.uid is None:
        return by.branch == DEFAULT_BRANCH
    if by.uid != caller.uid or by.branch is not None:
        return False
    return by.login is None or by.login == caller.login or has_ended(by.login)


def is_from_within(names: Reader, operation: Operation, branch: str) -> bool:
    """Whether processes of the session on `branch` may see and undo the operation: one of them requested it, or it is
    on this branch and on no other session, and has moved only names of this branch.

    Operations from a time when another branch had this name do not count, nor changes of the machine's files.
    """
    own, by = names.ref(branch), operation.by
    if own is None or operation.at < own.created or operation.applied is not None:
        return False
    if by is not None and by.uid is None and by.branch == branch:
        return True
    refs = [ref for name, move in operation.moves.items() if name != branch for ref in (move.before, move.after) if ref]
    return _is_on(operation, branch) and all(belongs_to(names, ref, branch) for ref in refs)


def concerns(operation: Operation, branch: str) -> bool:
    """Whether the operation is on this branch, also if it is on others, too, or its caller worked on this branch."""
    return _changes(operation, branch) or (operation.by is not None and operation.by.branch == branch)


def _is_on(operation: Operation, branch: str) -> bool:
    return _changes(operation, branch) and operation.sessions.keys() <= {branch}


def _changes(operation: Operation, branch: str) -> bool:
    applied = operation.applied
    in_names = branch in operation.sessions or branch in operation.moves
    return in_names or (applied is not None and applied.branch == branch)


def plan(
    ref: Lookup,
    operation: Operation,
    by: Callable[[str], str] = lambda _: "",
    is_behind: Callable[[Ref, Ref], bool] = lambda _now, _then: False,
) -> Plan:
    """Return the steps that undo `operation`. `ref`: looks up what a name stands for now. `by`: returns, for the error,
    words that name the operation that has moved a name since. `is_behind`: whether only points were made on a branch
    since it had the second ref (`only_points`). Raises StateConflict if the operation cannot be undone.

    Afterwards all names stand for what they stood for before the operation. This includes the branch of a session that
    the undo ends or replaces: the capture of that session does not become its tip, because the undo of an earlier
    operation would then find that the branch has moved.
    """
    deeds = [
        _deed(operation, branch, *states)
        for branch, states in sorted(operation.sessions.items(), key=lambda item: in_order(item[0]))
    ]
    if operation.undone:
        raise _impossible(operation, "it is already undone")
    if operation.expired:
        said = "it is older than the operations that are kept: captures that its undo needs may have been removed"
        next_step = "'waypoint setup --undo-budget SIZE' keeps more; see 'waypoint op log'"
        raise _impossible(operation, said, next_step, code="undo-expired")
    if operation.verb == DISCARD:
        raise _impossible(operation, "the files of the session were deleted")
    if operation.applied is not None:
        count = operation.applied.count
        said = f"take back the changes of {count} {'file' if count == 1 else 'files'} of the machine"
        tips = {name: move.before for name, move in operation.moves.items() if ref(name) == move.after}
        return Plan([], tips, {name: ref(name) for name in tips}, said)
    if not deeds and not operation.moves:
        raise _impossible(operation, "it changed no name and no session")

    def stays(name: str, after: Ref | None) -> bool:
        now = ref(name)
        return now == after or bool(name in operation.sessions and now and after and is_behind(now, after))

    moved_since = [name for name, move in operation.moves.items() if not stays(name, move.after)]
    left = [name for name in moved_since if _has_gone_on(operation, name, ref)]
    if moved_since and (left != moved_since or left == list(operation.moves)):
        raise _impossible(operation, f"{moved_since[0]} has been changed since{by(moved_since[0])}")
    moves = {name: move.before for name, move in operation.moves.items() if name not in left}
    words = [_words_of_deed(deed) for deed in deeds]
    words += [_words_of(name, before) for name, before in moves.items()]
    names = {deed.branch: ref(deed.branch) for deed in deeds} | moves
    return Plan(deeds, names, {name: ref(name) for name in names}, ", ".join(words))


def only_points(names: Reader, now: Ref, then: Ref) -> bool:
    """Whether the branch that had the ref `then` has `now`, because points were made on it (Capture.automatic)."""
    if (now.kind, now.created) != (then.kind, then.created) or now.capture is None:
        return False
    tip = names.captures_of([now.capture], may_lack=True).get(now.capture)
    while tip is not None and tip.automatic and tip.id != then.capture:
        above = names.parents_of(tip)
        tip = above[0] if above else None
    return tip is not None and tip.id == then.capture


def _has_gone_on(operation: Operation, name: str, ref: Lookup) -> bool:
    """Whether the operation only moved the tip of the branch `name`, and the tip has moved further since. The undo then
    leaves this branch as it is.
    """
    move, now = operation.moves[name], ref(name)
    is_step = move.before is not None and move.after is not None and name not in operation.sessions
    return is_step and now is not None and now.kind == "branch"


def conclude(change: Change, intent: Intent) -> None:
    """Make `change` the entry of the undo, and move the names. The deeds of the intent are done, and `change` has taken
    the intent. Raises StateConflict if others have moved a name since the plan was made, or if a branch that is to be
    removed has a live session.
    """
    operation = numbered(change, intent.undoes)
    change.undo(operation.number)
    expected = intent.seen | {name: move.after for name, move in intent.moves.items() if name in intent.seen}
    for name, ref in expected.items():
        if change.ref(name) != ref:
            raise _impossible(operation, f"another operation has just changed {name}")
    live = {row.branch for row in change.live()}
    for name in (name for name, ref in intent.names.items() if ref is None):
        if name in live:
            raise _impossible(operation, f"{name} has a running session", f"stop it first: waypoint stop {name}")
        change.put(name, None)
    for name, ref in intent.names.items():
        if ref is not None:
            if change.ref(name) is None:
                change.check_free(name, ref.kind)
            change.put(name, ref)


def numbered(names: Reader, number: int) -> Operation:
    """Return the operation with this number. Raises UnknownName if there is none."""
    found = names.operation(number)
    if found is None:
        raise UnknownName("undo", f"operation {number}", "no operation has this number", "see 'waypoint op log'")
    return found


def losses(
    steps: Plan, operation: Operation, ref: Lookup, capture: Callable[[str], Capture]
) -> list[tuple[str, list[Degradation]]]:
    """Return the processes that the steps will not restore, by branch. `capture`: looks up a capture by its id."""
    lost: list[tuple[str, list[Degradation]]] = []
    for deed in steps.deeds:
        if deed.act != "end" and deed.only is None:
            tip = ref(deed.branch)
            kept = deed.capture or (tip.capture if tip else None)
            lost.append((deed.branch, _lost_of(capture(kept)) if kept is not None else []))
    return lost


def _lost_of(kept: Capture) -> list[Degradation]:
    match kept.tier:
        case "live":
            return []
        case "respawn":
            programs = kept.layer(ProgramsLayer)
            said = f"capture {kept.id[:12]} has only their command lines"
            return [degradation("processes-not-kept", detail=said), *(programs.lost if programs else [])]
        case "files":
            return [degradation("processes-not-kept", detail=f"capture {kept.id[:12]} has only files")]


_WORDS = {
    "end": "end the session on {}",
    "start": "start {} again from its capture",
    "restore": "restore the session that was on {}",
}


def _deed(operation: Operation, branch: str, before: bool, after: bool) -> Deed:  # noqa: FBT001 - a pair of states
    if not before:
        return Deed("end", branch)
    kept = _kept(operation).get(branch)
    return Deed("restore" if after else "start", branch, kept.capture if kept else None, kept.only if kept else None)


def _kept(operation: Operation) -> dict[str, Aside]:
    """The captures of the sessions that the operation has ended or replaced, by branch."""
    ended = [branch for branch, (before, after) in operation.sessions.items() if before and not after]
    tips = {branch: operation.moves[branch].after for branch in ended if branch in operation.moves}
    kept = {branch: Aside(capture=tip.capture) for branch, tip in tips.items() if tip and tip.capture}
    return kept | operation.aside


def _words_of_deed(deed: Deed) -> str:
    only = f", its {deed.only} only" if deed.only else ""
    return f"{_WORDS[deed.act].format(deed.branch)}{only}"


def _words_of(name: str, before: Ref | None) -> str:
    if before is None:
        return f"remove the name {name}"
    return f"move {name} back to {before.capture[:12]}" if before.capture else f"leave {name} without a capture"


def _impossible(
    operation: Operation, said: str, next_step: str = "see 'waypoint op log'", code: str = "not-undoable"
) -> StateConflict:
    return StateConflict("undo", f"operation {operation.number} ({operation.verb})", said, next_step, code=code)
