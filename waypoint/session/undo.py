"""Undoing an operation, as a transaction.

One transaction makes the plan. If the undo only moves names, the same transaction moves them. Otherwise it records an
intent (`Intent`); then the deeds end, start and restore sessions, and each records its changes under the intent instead
of as an operation; a last transaction moves the names and turns the intent into the undo's entry in the operation log.

If the daemon is killed in between, the next one drops an intent without changes, and completes any other one. If a deed
fails, the intent becomes an entry that contains the changes so far and can be undone itself.
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from waypoint.branch.undo import Plan, conclude, losses, numbered, only_points, plan
from waypoint.capture.layers.layer import CaptureOptions
from waypoint.capture.steps import Step, reach_in_loop
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import Failed, StateConflict, StoreDamaged, WaypointError
from waypoint.model.records import Caller, Deed, Intent, Operation
from waypoint.model.users import user_name
from waypoint.records import callers
from waypoint.records.names import Names
from waypoint.records.reading import Reader
from waypoint.session.applying import take_back
from waypoint.session.checkpoint import LossConsent, checkpoint
from waypoint.session.live.resources import Resources
from waypoint.session.losses import kept_losses
from waypoint.session.registry import Registry
from waypoint.session.restore import restore, restore_files, restore_shell

T = TypeVar("T")

OfBranches = list[tuple[str, list[Degradation]]]
"""Degradations, by branch."""

log = logging.getLogger(__name__)


class Planned(NamedTuple):
    """The plan of an undo. `operation`: the operation to undo. `lost`: the processes that the undo cannot restore."""

    operation: Operation
    plan: Plan
    lost: OfBranches


class Undone(NamedTuple):
    """A complete undo. `entry`: its entry in the operation log. `degraded`: parts of the replaced or ended sessions
    that were not kept, and parts that were restored incompletely.
    """

    planned: Planned
    entry: Operation
    degraded: OfBranches


def plan_undo(names: Reader, number: int) -> Planned:
    """Plan the undo of the operation `number`. Raises UnknownName, StateConflict."""

    def moved(name: str) -> str:
        last = names.last_to_undo(lambda one: name in one.moves)
        if last is None or last.number <= number:
            return ""
        return f", last by operation {last.number} ({last.verb}), which was requested {asked_by(last.by)}"

    operation = numbered(names, number)
    found = plan(names.ref, operation, moved, functools.partial(only_points, names))
    _check_there(names, operation, found)
    return Planned(operation, found, losses(found, operation, names.ref, names.capture))


def _check_there(names: Reader, operation: Operation, found: Plan) -> None:
    """Raise StateConflict if a capture that the plan needs was removed ('rm --now', 'gc --keep-operations')."""
    needed = [ref.capture for ref in found.names.values() if ref is not None]
    for capture in (*needed, *(deed.capture for deed in found.deeds)):
        if capture is not None and names.standing(capture).removed:
            on, said = f"operation {operation.number} ({operation.verb})", f"capture {capture[:12]} was removed"
            raise StateConflict("undo", on, said, "see 'waypoint op log'", code="undo-expired")


def asked_by(by: Caller | None) -> str:
    """The caller of an operation, in words."""
    if by is None:
        return "by Waypoint itself"
    works_on = f"{'for' if by.uid is not None else 'from within'} {by.branch}" if by.branch else ""
    return " ".join(filter(None, [f"by {user_name(by.uid)}" if by.uid is not None else "", works_on]))


async def undo(sessions: Registry, number: int, *, lose_processes: bool, force: bool = False) -> Undone:
    """Undo the operation `number`. The caller holds the turns (locks) of all names and sessions that it has moved.

    `lose_processes`: sessions that the undo replaces or ends may lose their processes. `force`: files of the machine
    may be replaced although they were changed after the operation.
    """
    names = sessions.resources.names
    if numbered(names, number).applied is not None:
        planned = plan_undo(names, number)
        entry = await take_back(sessions, planned.operation, planned.plan.names, force=force)
        return Undone(planned, numbered(names, entry), [])
    with names.change("undo") as change:
        planned = plan_undo(change, number)
        intent = Intent(
            undoes=number,
            by=callers.current(),
            lose_processes=lose_processes,
            deeds=planned.plan.deeds,
            names=planned.plan.names,
            seen=planned.plan.seen,
        )
        if intent.deeds:
            intent = change.add_intent(intent)
        else:
            conclude(change, intent)
    if not intent.deeds:
        return Undone(planned, numbered(names, change.number or 0), [])
    await reach_in_loop(Step.INTENDED)
    entry, degraded = await _complete(sessions, intent)
    return Undone(planned, numbered(names, entry), degraded)


async def complete_interrupted(sessions: Registry) -> None:
    """Complete the undos that the last daemon has begun. To be called after the sessions were adopted. A failure is
    logged, because it must not keep the home from opening.
    """
    try:
        for intent in sessions.resources.names.intents():
            await _resume(sessions, intent)
    except StoreDamaged as error:
        log.error("an undo was interrupted, and is not completed: %s", error)


async def _resume(sessions: Registry, intent: Intent) -> None:
    try:
        if intent.sessions:
            with callers.asked_by(intent.by):
                async with sessions.turn(*intent.seen):
                    await _complete(sessions, intent)
            log.warning("the undo of operation %d was interrupted, and is complete now", intent.undoes)
        else:
            _close(sessions.resources.names, intent.number)
    except (WaypointError, OSError) as error:
        log.error("the undo of operation %d was interrupted: %s", intent.undoes, error)


async def _complete(sessions: Registry, intent: Intent) -> tuple[int, OfBranches]:
    """Carry out the deeds of the intent that are not done, and record the undo. Returns the number of its entry.

    After a failure, the entry contains the deeds that are done. If this task is cancelled, because the daemon ends, the
    intent stays for the next daemon.
    """
    resources = sessions.resources
    deeds = [deed for deed in intent.deeds if not _is_done(intent, deed)]
    loss = LossConsent.of(f"waypoint undo {intent.undoes} --lose-processes", agreed=intent.lose_processes)
    ends = asyncio.Barrier(max(1, sum(deed.act == "end" for deed in deeds)))
    try:
        with callers.under_intent(intent.number):
            found = await sessions.share_turns({deed.branch: _carry_out(sessions, deed, loss, ends) for deed in deeds})
    except Exception as error:
        _record(resources, intent, functools.partial(_abandon, resources.names, intent.number, error))
        raise
    await reach_in_loop(Step.CARRIED_OUT)
    entry = _record(resources, intent, functools.partial(_conclude, resources.names, intent.number))
    await reach_in_loop(Step.UNDONE)
    return entry, [(deed.branch, items) for deed, items in zip(deeds, found, strict=True)]


def _is_done(intent: Intent, deed: Deed) -> bool:
    """Whether the deed's changes are on record. The state of a shell is put back after its record, so that is repeated;
    files are put back by `rewind.finish_interrupted`.
    """
    return deed.branch in intent.sessions and deed.only != "shell"


async def _carry_out(sessions: Registry, deed: Deed, loss: LossConsent, ends: asyncio.Barrier) -> list[Degradation]:
    """Carry out `deed`. Returns what could not be restored or was not kept. `ends`: the barrier of all deeds that end a
    session. No session ends before all are captured: if one cannot be captured, none ends.
    """
    origin = deed.capture or deed.branch
    match deed.act:
        case "end":
            try:
                if await sessions.settled(deed.branch) is None:
                    await ends.wait()
                    return []
                ended = await checkpoint(
                    sessions, deed.branch, CaptureOptions(keep_frozen=True, undone=True), loss, ends.wait
                )
            except BaseException:
                await ends.abort()
                raise
            return kept_losses(ended.capture, "ended")
        case "restore" if deed.only == "files":
            return (await restore_files(sessions, deed.branch, origin)).degraded
        case "restore" if deed.only == "shell":
            return (await restore_shell(sessions, deed.branch, origin)).degraded
        case _:
            restored = await restore(sessions, deed.branch, origin, loss)
            programs = restored.live.restarted
            return [*restored.degraded, *(programs.lost if programs else [])]


def _record(resources: Resources, intent: Intent, write: Callable[[], T]) -> T:
    """Call `write`. If the disk is full, it is called again later, and no new operation on the branch begins before."""
    try:
        return write()
    except Failed as error:
        event = f"operation {intent.undoes} was undone"
        raise resources.pending_records.add(intent.deeds[0].branch, event, write, error) from error


def _conclude(names: Names, number: int) -> int:
    """Record the intent `number` as a complete undo, and move the names. Returns the number of its entry."""
    try:
        with names.change("undo") as change:
            intent = change.take_intent(number)
            if intent is not None:
                conclude(change, intent)
    except StateConflict as error:
        _abandon(names, number, error)
        raise
    return change.number or 0


def _abandon(names: Names, number: int, error: Exception) -> None:
    """Record the deeds of the intent `number` that are done, without undoing the operation, because of `error`."""
    entry = _close(names, number, error.said if isinstance(error, WaypointError) else type(error).__name__)
    if entry is not None and isinstance(error, WaypointError):
        way = f"to reverse the part of the undo that is done: waypoint undo {entry}"
        error.next_step = f"{error.next_step}; {way}" if error.next_step else way


def _close(names: Names, number: int, said: str = "") -> int | None:
    """Remove the intent `number`. Returns the number of the entry with its changes; None if it has none. `said`: why
    the undo is incomplete.
    """
    with names.change("undo") as change:
        intent = change.take_intent(number)
        if intent is not None:
            change.degraded.append(degradation("undo-incomplete", str(intent.undoes), said))
    return change.number
