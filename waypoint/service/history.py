"""The history of a home: captures, names, the operation log, and undo."""

import asyncio
import contextlib
import functools
from collections.abc import Callable

from waypoint.branch import refs
from waypoint.branch.graph import in_pieces, limited, walk_all, walk_back
from waypoint.branch.undo import (
    BY_ITSELF,
    DISCARD,
    Lookup,
    concerns,
    is_from_within,
    is_of,
    numbered,
    only_points,
    plan,
)
from waypoint.linux.tasks import procfs
from waypoint.model.conditions import facts_of
from waypoint.model.errors import StateConflict, WaypointError
from waypoint.model.facts import BranchFacts, CaptureFacts, NameFacts, OperationFacts, UndoFacts, UndoneFacts
from waypoint.model.names import DEFAULT_BRANCH, MACHINE
from waypoint.model.records import Capture, Login, Operation, Ref
from waypoint.model.requests import LogQuery, OperationsQuery, RemoveRequest, RenameRequest, UndoRequest
from waypoint.model.times import iso_time
from waypoint.records import callers
from waypoint.records.names import Names
from waypoint.service import capture_facts
from waypoint.service.change_counts import LONG_WAIT_S, SHORT_WAIT_S
from waypoint.service.home import Home
from waypoint.service.housekeeping import remove_now
from waypoint.service.shapes import Pages
from waypoint.session import undo as undoing
from waypoint.session.birth import rights


async def log(home: Home, query: LogQuery) -> Pages[CaptureFacts]:
    """The capture that a name stands for and its ancestors, or all captures; the newest first, children before parents.

    The first step raises UnknownName.
    """
    return _iter_log(home, query, rights.may_see(home.sessions.resources))


def _iter_log(home: Home, query: LogQuery, sees: rights.MaySee) -> Pages[CaptureFacts]:
    wait_s = SHORT_WAIT_S  # only before the first page
    if query.all:
        for ids in limited(walk_all(home.names), query.limit):
            home.counts.want(ids, wait_s)
            wait_s = 0.0
            yield capture_facts.of_all(home.names, list(home.names.captures_of(ids, may_lack=True).values()), sees)
    else:
        tip = home.names.find(query.name or DEFAULT_BRANCH)
        for piece in limited(in_pieces(walk_back(home.names, [tip])), query.limit):
            home.counts.want([one.id for one in piece], wait_s)
            wait_s = 0.0
            yield capture_facts.of_all(home.names, piece, sees)


async def show(home: Home, name: str) -> CaptureFacts:
    """All facts about a capture, with sizes and digests. Walks over the capture's files, in a thread."""
    capture = home.names.find(name)
    await asyncio.to_thread(home.counts.want, [capture.id], LONG_WAIT_S)
    names, standing = home.names.names_of(capture.id), home.names.standing(capture.id)
    sees = rights.may_see(home.sessions.resources)
    measured = {} if standing.removed else await asyncio.to_thread(home.captures.measure, capture)
    return capture_facts.of(capture, names, standing, sees, measured)


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
    meant = list(dict.fromkeys(map(home.names.meant, request.names)))
    async with home.sessions.turn(*meant):
        for name in meant:
            rights.check_name(home.sessions.resources, name, "remove")
        gone = await asyncio.to_thread(_captures_of, home, meant) if request.now else []
        refs.remove(home.names, meant, home.sessions.running)
    if gone:
        await remove_now(home, gone)


def _captures_of(home: Home, names: list[str]) -> list[str]:
    """The ids of the captures of checkpoints, and of all captures of branches, that the caller may remove. Blocks."""
    found = [ref for ref in map(home.names.ref, names) if ref is not None]
    ids = {ref.capture for ref in found if ref.capture is not None}
    branches = {ref.created for ref in found if ref.kind == "branch"}
    ids |= {link.id for piece in home.names.iter_links() for link in piece if link.branch in branches}
    captures = home.names.captures_of(sorted(ids), may_lack=True).values()
    return [one.id for one in captures if rights.may_use(home.sessions.resources, one.setting.user.uid)]


async def operations(home: Home, query: OperationsQuery) -> Pages[OperationFacts]:
    """The entries of the operation log, or those that concern `query.branch`, the newest first, each with what its
    undo would do. The names are read once, before the first entry.
    """
    if query.branch is None:
        return _iter_operations(home, query.limit)
    is_wanted = functools.partial(concerns, branch=query.branch)
    return limited(_iter_operations(home, None, is_wanted), query.limit)


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
        yield [_describe(home.names, refs.get, entry) for entry in piece if is_wanted(entry)]


async def undo(home: Home, request: UndoRequest) -> UndoFacts:
    """Undo the requested operation, or else the last operation of the branch or the caller that was not undone. With
    `request.dry_run` only report what the undo would do. Raises UnknownName, StateConflict.

    Holds the locks of all names and sessions that the operation has moved, so no other request moves them meanwhile.
    """
    # Shielded, because the undo may replace or end the session that asks, which cancels the request.
    return await asyncio.shield(asyncio.ensure_future(_undo(home, request)))


async def _undo(home: Home, request: UndoRequest) -> UndoFacts:
    while True:
        seen = home.names.last_number()
        chosen = await asyncio.to_thread(_to_undo, home, request)
        if request.dry_run:
            _check_rights(home, chosen)
            return UndoFacts(operation=None, undone=_undone(undoing.plan_undo(home.names, chosen.number), []))
        async with home.sessions.turn(*chosen.moves, *chosen.sessions, *([MACHINE] if chosen.applied else [])):
            # Other requests may have logged operations while this request waited for the locks.
            is_chosen = home.names.last_number() == seen
            if is_chosen or (await asyncio.to_thread(_to_undo, home, request)).number == chosen.number:
                _check_rights(home, chosen)
                done = await undoing.undo(
                    home.sessions, chosen.number, lose_processes=request.lose_processes, force=request.force
                )
                entry = _describe(home.names, home.names.ref, done.entry)
                return UndoFacts(operation=entry, undone=_undone(done.planned, done.degraded))


def _check_rights(home: Home, operation: Operation) -> None:
    """Raise NotAllowed unless the caller may use all names and sessions that the operation has moved."""
    resources, tried = home.sessions.resources, f"undo operation {operation.number} on"
    for name in {*operation.moves, *operation.sessions}:
        rights.check_name(resources, name, tried)
    for name, move in operation.moves.items():
        for ref in (move.before, move.after):
            rights.check_ref(resources, ref, name, tried)


def _undone(planned: undoing.Planned, degraded: undoing.OfBranches) -> UndoneFacts:
    operation = planned.operation
    return UndoneFacts(
        number=operation.number,
        verb=operation.verb,
        undo=planned.plan.words,
        lost=[one for branch, found in planned.lost for one in facts_of(found, branch)],
        degraded=[one for branch, found in degraded for one in facts_of(found, branch)],
        at=iso_time(operation.at),
        by=undoing.asked_by(operation.by),
    )


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
        return numbered(home.names, request.number)
    caller, is_restricted = callers.current(), rights.is_restricted(home.sessions.resources)
    branch = request.branch if request.branch is not None else caller.branch if caller else None
    if branch is not None:
        rights.check_name(home.sessions.resources, branch, "undo an operation on")

    def has_ended(login: Login) -> bool:
        return not procfs.is_same(login.pid, login.start)

    def is_anothers(one: Operation) -> bool:
        return is_restricted and one.by is not None and one.by.uid not in (None, caller.uid if caller else None)

    def is_meant(one: Operation) -> bool:
        return (
            one.point is None
            and one.verb not in BY_ITSELF
            and bool(one.moves or one.sessions or one.applied)
            and is_of(one, branch, caller, has_ended)
            and not is_anothers(one)
        )

    def is_shared(one: Operation) -> bool:
        return branch in one.sessions and len(one.sessions) > 1 and not is_anothers(one)

    can_be_undone = _newest_first(home.names)
    found = home.names.last_to_undo(lambda one: can_be_undone(one) and (is_meant(one) or is_shared(one)))
    if found is not None and not is_meant(found):
        others = ", ".join(sorted(one for one in found.sessions if one != branch))
        said = f"it is operation {found.number} ({found.verb}), which also concerns {others}"
        next_step = f"undo it on all of them: waypoint undo {found.number}"
        raise StateConflict("undo", f"the last operation of branch {branch}", said, next_step)
    if found is not None:
        return found
    whose = f"of branch {branch}" if branch is not None else "that you asked for"
    raise _none_left(home, whose, is_meant)


def _newest_first(names: Names) -> Callable[[Operation], bool]:
    """A predicate for operations, the newest first: whether no discard of a session stands in the way of the undo."""
    discarded: set[str] = set()

    def can_be_undone(one: Operation) -> bool:
        if one.verb == DISCARD:
            discarded.update(one.sessions)
            return False
        if not discarded.isdisjoint((*one.sessions, *one.moves)):
            with contextlib.suppress(StateConflict):
                return bool(undoing.plan_undo(names, one.number))
            return False
        return True

    return can_be_undone


def _none_left(home: Home, whose: str, is_meant: Callable[[Operation], bool]) -> StateConflict:
    """The error if no operation is left. It names the last undo, if there is one."""
    said, next_step = "no operation is left to undo", "choose one by its number: waypoint op log, then waypoint undo N"
    undos = (one for piece in home.names.iter_operations() for one in piece if one.undoes is not None)
    last = next((one for one in undos if not one.undone and is_meant(one)), None)
    if last is not None and last.undoes is not None:
        undone = numbered(home.names, last.undoes)
        said += f": the last undo, {last.number}, reversed operation {undone.number} ({undone.verb})"
        next_step = f"to do this operation again: waypoint undo {last.number}"
    return StateConflict("undo", f"the last operation {whose}", said, next_step, code="nothing-to-undo")


def _describe(names: Names, ref: Lookup, operation: Operation) -> OperationFacts:
    words: str | None = None
    said = ""
    try:
        words = plan(ref, operation, is_behind=functools.partial(only_points, names)).words
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
        degraded=facts_of(operation.degraded),
    )
