"""The history of a home: captures, names, the operation log, and undo."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable

from waypoint.branch import refs
from waypoint.branch.graph import in_pieces, limited, walk_all, walk_back
from waypoint.branch.undo import Deed, Lookup, Plan, is_from_within, is_of, losses, plan, write
from waypoint.linux.tasks import procfs
from waypoint.model.conditions import Degradation, facts_of
from waypoint.model.errors import StateConflict, UnknownName, WaypointError
from waypoint.model.facts import (
    BranchFacts,
    CaptureFacts,
    ConditionFacts,
    NameFacts,
    OperationFacts,
    UndoFacts,
    UndoneFacts,
)
from waypoint.model.names import DEFAULT_BRANCH
from waypoint.model.records import Caller, Capture, Login, Operation, Ref
from waypoint.model.requests import LogQuery, OperationsQuery, RemoveRequest, RenameRequest, UndoRequest
from waypoint.model.times import iso_time
from waypoint.records import callers
from waypoint.records.names import Names
from waypoint.records.reading import Reader
from waypoint.service import capture_facts
from waypoint.service.home import Home
from waypoint.service.shapes import Pages
from waypoint.session.birth import rights
from waypoint.session.birth.users import user_name
from waypoint.session.checkpoint import CheckpointOptions, LossConsent, checkpoint
from waypoint.session.losses import kept_losses
from waypoint.session.restore import restore, restore_files, restore_shell


async def log(home: Home, query: LogQuery) -> Pages[CaptureFacts]:
    """The capture that a name stands for and its ancestors, or all captures; the newest first, children before parents.

    The first step raises UnknownName.
    """
    return _iter_log(home, query, rights.may_see(home.sessions.resources))


def _iter_log(home: Home, query: LogQuery, sees: rights.MaySee) -> Pages[CaptureFacts]:
    if query.all:
        for ids in limited(walk_all(home.names), query.limit):
            yield capture_facts.of_all(home.names, list(home.names.captures_of(ids, may_lack=True).values()), sees)
    else:
        tip = home.names.find(query.name or DEFAULT_BRANCH)
        for piece in limited(in_pieces(walk_back(home.names, [tip])), query.limit):
            yield capture_facts.of_all(home.names, piece, sees)


async def show(home: Home, name: str) -> CaptureFacts:
    """All facts about a capture, sizes included. Walks over the capture's files, in a thread."""
    capture = home.names.find(name)
    names, standing = home.names.names_of(capture.id), home.names.standing(capture.id)
    sees = rights.may_see(home.sessions.resources)
    sizes = {} if standing.removed else await asyncio.to_thread(home.captures.sizes, capture)
    return capture_facts.of(capture, names, standing, sees, sizes)


async def branches(home: Home) -> Pages[BranchFacts]:
    """The facts about all branches, sorted by name."""
    return _iter_branches(home.names, home.sessions.running)


async def names(home: Home) -> Pages[NameFacts]:
    """All branches and checkpoints, sorted by name."""
    live = home.sessions.running
    return (
        [NameFacts(name=name, kind=ref.kind, live=name in live) for name, ref in piece.items()]
        for piece in home.names.iter_refs()
    )


async def rename(home: Home, branch: str, request: RenameRequest) -> None:
    async with home.sessions.turn(branch, request.to):
        rights.check_name(home.sessions.resources, branch, "rename")
        refs.rename(home.names, branch, request.to, home.sessions.running)


async def remove(home: Home, request: RemoveRequest) -> None:
    """Remove checkpoints and branches, all of them or none."""
    async with home.sessions.turn(*request.names):
        for name in request.names:
            rights.check_name(home.sessions.resources, name, "remove")
        refs.remove(home.names, list(dict.fromkeys(request.names)), home.sessions.running)


async def operations(home: Home, query: OperationsQuery) -> Pages[OperationFacts]:
    """The entries of the operation log, the newest first, each with what its undo would do. The names are
    read once, before the first entry.
    """
    return _iter_operations(home, query.limit)


def operations_of(home: Home, branch: str) -> Pages[OperationFacts]:
    """The entries of the operation log that processes of the session on `branch` may see, the newest first."""
    is_wanted = functools.partial(is_from_within, home.names, branch=branch)
    return _iter_operations(home, None, is_wanted)


def _iter_operations(
    home: Home, limit: int | None, is_wanted: Callable[[Operation], bool] = lambda _: True
) -> Pages[OperationFacts]:
    refs: dict[str, Ref] = {}
    for names in home.names.iter_refs():
        refs.update(names)
        yield []
    for piece in home.names.iter_operations(limit):
        yield [_describe(refs.get, entry) for entry in piece if is_wanted(entry)]


async def undo(home: Home, request: UndoRequest) -> UndoFacts:
    """Undo the requested operation, or else the last operation of the branch or the caller that was not undone. With
    `request.dry_run` only report what the undo would do. Raises UnknownName, StateConflict.

    Holds the locks of all names and sessions that the operation has moved, so no other request moves them meanwhile.
    """
    while True:
        seen = home.names.last_number()
        chosen = await asyncio.to_thread(_to_undo, home, request)
        if request.dry_run:
            _check_rights(home, chosen)
            return UndoFacts(operation=None, undone=_undone(home.names, chosen, _plan(home.names, chosen)))
        async with home.sessions.turn(*chosen.moves, *chosen.sessions):
            # Other requests may have logged operations while this request waited for the locks.
            is_chosen = home.names.last_number() == seen
            if is_chosen or (await asyncio.to_thread(_to_undo, home, request)).number == chosen.number:
                _check_rights(home, chosen)
                return await _take_back(home, chosen.number, lose_processes=request.lose_processes)


def _check_rights(home: Home, operation: Operation) -> None:
    """Raise NotAllowed unless the caller may use all names and sessions that the operation has moved."""
    resources, tried = home.sessions.resources, f"undo operation {operation.number} on"
    for name in {*operation.moves, *operation.sessions}:
        rights.check_name(resources, name, tried)
    for name, move in operation.moves.items():
        for ref in (move.before, move.after):
            rights.check_ref(resources, ref, name, tried)


async def _take_back(home: Home, number: int, *, lose_processes: bool) -> UndoFacts:
    """Undo the operation `number`. The caller holds the locks of all names and sessions that it has moved.

    `lose_processes`: sessions that the undo replaces or ends may lose their processes.

    If the undo changes no session, one transaction makes the plan and writes it. Otherwise the plan's steps on sessions
    (`deeds`) are carried out next, and a second transaction checks that the names have not moved since, and writes.
    """
    with home.names.change("undo") as change:
        operation = _numbered(change, number)
        steps = _plan(change, operation)
        undone = _undone(change, operation, steps)
        before = change.last_number()
        if not steps.deeds:
            write(change, operation, steps, [])
    degraded: list[ConditionFacts] = []
    if steps.deeds:
        loss = LossConsent(lose_processes, f"waypoint undo {operation.number} --lose-processes")
        ends = asyncio.Barrier(max(1, sum(deed.act == "end" for deed in steps.deeds)))
        works = {deed.branch: _carry_out(home, deed, loss, ends) for deed in steps.deeds}
        carried_out = await home.sessions.share_turns(works)
        for deed, items in zip(steps.deeds, carried_out, strict=True):
            degraded += facts_of(items, deed.branch)
        with home.names.change("undo") as change:
            write(change, operation, steps, change.operations_since(before))
    made = _numbered(home.names, change.number or 0)
    undone = dataclasses.replace(undone, degraded=degraded)
    return UndoFacts(operation=_describe(home.names.ref, made), undone=undone)


def _plan(names: Reader, operation: Operation) -> Plan:
    """Plan the undo of `operation`. If a later operation has moved one of its names, the error names that operation."""

    def moved(name: str) -> str:
        last = names.last_to_undo(lambda one: name in one.moves)
        if last is None or last.number <= operation.number:
            return ""
        return f", last by operation {last.number} ({last.verb}), which was requested {_asked_by(last.by)}"

    return plan(names.ref, operation, moved)


def _undone(names: Reader, operation: Operation, steps: Plan) -> UndoneFacts:
    lost = losses(steps, operation, names.ref, names.capture)
    return UndoneFacts(
        number=operation.number,
        verb=operation.verb,
        undo=steps.words,
        lost=[one for branch, found in lost for one in facts_of(found, branch)],
        degraded=[],
        at=iso_time(operation.at),
        by=_asked_by(operation.by),
    )


def _asked_by(by: Caller | None) -> str:
    """The caller of an operation, in words."""
    if by is None:
        return "by Waypoint itself"
    works_on = f"{'for' if by.uid is not None else 'from within'} {by.branch}" if by.branch else ""
    return " ".join(filter(None, [f"by {user_name(by.uid)}" if by.uid is not None else "", works_on]))


async def _carry_out(home: Home, deed: Deed, loss: LossConsent, ends: asyncio.Barrier) -> list[Degradation]:
    """Carry out `deed`. Returns what could not be restored or was not kept. `ends`: the barrier of all
    deeds that end a session. No session ends before all are captured: if one cannot be captured, none ends.
    """
    sessions, origin = home.sessions, deed.capture or deed.branch
    match deed.act:
        case "end":
            try:
                if await sessions.settled(deed.branch) is None:
                    await ends.wait()
                    return []
                kept = await checkpoint(
                    sessions, deed.branch, CheckpointOptions(park=True, undone=True), loss, ends.wait
                )
            except BaseException:
                await ends.abort()
                raise
            return kept_losses(kept, "ended")
        case "restore" if deed.only == "files":
            return (await restore_files(sessions, deed.branch, origin)).degraded
        case "restore" if deed.only == "shell":
            return (await restore_shell(sessions, deed.branch, origin)).degraded
        case _:
            restored = await restore(sessions, deed.branch, origin, loss)
            programs = restored.live.restarted
            return [*restored.degraded, *(programs.lost if programs else [])]


def _iter_branches(names: Names, live: set[str]) -> Pages[BranchFacts]:
    for piece in names.iter_refs():
        refs = {name: ref for name, ref in piece.items() if ref.kind == "branch"}
        tips = names.tips_of(refs)
        yield [
            _branch(name, ref, tips.get(name), is_live=name in live)
            for name, ref in refs.items()
            if ref.capture is None or name in tips
        ]


def _branch(name: str, ref: Ref, tip: Capture | None, *, is_live: bool) -> BranchFacts:
    return BranchFacts(
        name=name,
        tip=ref.capture,
        live=is_live,
        tier=tip.tier if tip else None,
        created=iso_time(ref.created),
        captured=iso_time(tip.created) if tip else None,
    )


def _to_undo(home: Home, request: UndoRequest) -> Operation:
    """Return the operation to undo. Raises UnknownName, StateConflict if none is left. May read the whole log: not for
    the event loop.
    """
    if request.number is not None:
        return _numbered(home.names, request.number)
    caller, is_restricted = callers.current(), rights.is_restricted(home.sessions.resources)
    branch = request.branch if request.branch is not None else caller.branch if caller else None
    if branch is not None:
        rights.check_name(home.sessions.resources, branch, "undo an operation on")

    def has_ended(login: Login) -> bool:
        return not procfs.is_same(login.pid, login.start)

    def is_anothers(one: Operation) -> bool:
        return is_restricted and one.by is not None and one.by.uid not in (None, caller.uid if caller else None)

    def is_meant(one: Operation) -> bool:
        return bool(one.moves or one.sessions) and is_of(one, branch, caller, has_ended) and not is_anothers(one)

    def is_shared(one: Operation) -> bool:
        return branch in one.sessions and len(one.sessions) > 1 and not is_anothers(one)

    found = home.names.last_to_undo(lambda one: is_meant(one) or is_shared(one))
    if found is not None and not is_meant(found):
        others = ", ".join(sorted(one for one in found.sessions if one != branch))
        said = f"it is operation {found.number} ({found.verb}), which also concerns {others}"
        next_step = f"undo it on all of them: waypoint undo {found.number}"
        raise StateConflict("undo", f"the last operation of branch {branch}", said, next_step)
    if found is not None:
        return found
    whose = f"of branch {branch}" if branch is not None else "that you asked for"
    raise _none_left(home, whose, is_meant)


def _none_left(home: Home, whose: str, is_meant: Callable[[Operation], bool]) -> StateConflict:
    """The error if no operation is left. It names the last undo, if there is one."""
    said, next_step = "no operation is left to undo", "choose one by its number: waypoint op log, then waypoint undo N"
    undos = (one for piece in home.names.iter_operations() for one in piece if one.undoes is not None)
    last = next((one for one in undos if not one.undone and is_meant(one)), None)
    if last is not None and last.undoes is not None:
        undone = _numbered(home.names, last.undoes)
        said += f": the last undo, {last.number}, reversed operation {undone.number} ({undone.verb})"
        next_step = f"to do this operation again: waypoint undo {last.number}"
    return StateConflict("undo", f"the last operation {whose}", said, next_step, code="nothing-to-undo")


def _numbered(names: Reader, number: int) -> Operation:
    found = names.operation(number)
    if found is None:
        raise UnknownName("undo", f"operation {number}", "no operation has this number", "see 'waypoint op log'")
    return found


def _describe(ref: Lookup, operation: Operation) -> OperationFacts:
    words: str | None = None
    said = ""
    try:
        words = plan(ref, operation).words
    except WaypointError as error:
        said = error.said
    moves = {
        name: (
            move.before.capture if move.before else None,
            move.after.capture if move.after else None,
        )
        for name, move in operation.moves.items()
    }
    return OperationFacts(
        number=operation.number,
        at=iso_time(operation.at),
        verb=operation.verb,
        moves=moves,
        sessions=operation.sessions,
        undone=operation.undone,
        undoes=operation.undoes,
        undo=words,
        said=said,
        note=operation.note,
    )
