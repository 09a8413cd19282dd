"""Capturing the session of a branch, and naming the capture."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from waypoint.capture.sealing import placed
from waypoint.capture.steps import Step, reach_in_loop
from waypoint.capture.taking import Wanted, is_disk_full
from waypoint.model.errors import CannotCapture, Failed, StateConflict
from waypoint.model.names import parse_name
from waypoint.model.records import Capture, Reason, Ref, Tier
from waypoint.processes.criu.causes import CriuFailed
from waypoint.session.birth.rights import check_name
from waypoint.session.end import Kept
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.live.subject import LiveSubject, let_go_on
from waypoint.session.registry import Registry
from waypoint.store.reading import Reader, belongs_to

Prepare = Callable[[LiveSession], Awaitable[Sequence[str]]]
"""What is done before a capture. Returns, in words, what failed of it, which the capture then says."""


class Wish(NamedTuple):
    """The checkpoint that is asked for.

    `name` None: only the branch's tip moves. `tier` None: `live` if the processes can be dumped, else `respawn`; with
    `park`: `live`. `force`: if a checkpoint has this name already, move the name. `park`: end the session with the
    checkpoint. `within`: a process of the session asks, so only a name that belongs to its own branch may be moved.
    `undone`: an undo parks it, after which the branch is what it was before the session, or not there.
    """

    name: str | None = None
    tier: Tier | None = None
    message: str = ""
    force: bool = False
    park: bool = False
    within: bool = False
    undone: bool = False


class Loss(NamedTuple):
    """The agreement that the processes of a session which is replaced or ended be lost: what is kept of them is how to
    start them again (the tier `respawn`).

    `agreed`: whether the user has agreed. `command`: the command by which the user agrees.
    """

    agreed: bool
    command: str


async def checkpoint(
    sessions: Registry,
    branch: str,
    wish: Wish,
    loss: Loss | None = None,
    agree: Callable[[], Awaitable[object]] | None = None,
    prepare: Prepare | None = None,
) -> Capture:
    """Capture the session on `branch`, and record the capture as the branch's tip and under `wish.name`.

    The session goes on, or ends if `wish.park`. `loss` None: with `wish.park`, a lower tier than `live` is the
    agreement to lose the processes. `prepare`: awaited before the capture is taken. `agree`: awaited when the capture
    is taken and not yet on record; an exception of it is a failure as any other. Raises UnknownName, StateConflict (the
    branch is not live, or the name is taken and not `force`), CannotCapture (the tier is not possible), Failed. After a
    failure nothing is on record, and the session goes on.
    """
    resources = sessions.resources
    _check_name(resources, branch, wish)
    async with sessions.turn(branch, *([wish.name] if wish.force and wish.name else [])):
        check_name(resources, branch, "checkpoint")
        if wish.name is not None:
            check_name(resources, wish.name, "move")
        live = await sessions.settled_live(branch)
        _check_name(resources, branch, wish)
        said = await prepare(live) if prepare is not None else ()
        wanted = Wanted(wish.tier, "checkpoint", wish.message, hold=wish.park, said=said)
        if wish.park:
            taken = await capture_to_end(resources, live, wanted, "park", loss or _loss_of(branch, wish))
        else:
            taken = await capture(resources, live, wanted)
        try:
            if agree is not None:
                await agree()
            kept = _record(resources, live, taken, wish)
        except BaseException:
            await drop(resources, taken)
            if wish.park:
                let_go_on(live)
            raise
        await reach_in_loop(Step.RECORDED)
        if wish.park:
            await asyncio.shield(sessions.endings.begin(live, Kept(kept, is_undone=wish.undone)))
        return kept


async def capture_tip(
    sessions: Registry, branch: str, reason: Reason, prepare: Prepare | None = None
) -> Capture | None:
    """Capture the session on `branch`, and record the capture as the branch's tip; None if the branch is not live.

    The caller has the turn of the branch. `prepare`: as for `checkpoint`. Raises as `Captures.take` and `Names.change`.
    """
    live = await sessions.settled(branch)
    if live is None:
        return None
    said = await prepare(live) if prepare is not None else ()
    taken = await capture(sessions.resources, live, Wanted(None, reason, said=said))
    try:
        return _record(sessions.resources, live, taken, Wish())
    except BaseException:
        await drop(sessions.resources, taken)
        raise


async def capture(resources: Resources, live: LiveSession, wanted: Wanted) -> Capture:
    """Take a capture of the session; the capture is on no record yet. The caller has the turn of the branch.

    If the disk is too full for it, what nothing keeps is removed, and the capture is tried once more. Raises as
    `Captures.take`.
    """

    def take(subject: LiveSubject) -> Capture:
        return resources.captures.take(subject, wanted)

    try:
        return await capture_by(resources, live, take)
    except Failed as error:
        if not is_disk_full(error) or not await resources.relieve():
            raise
    return await capture_by(resources, live, take)


async def capture_by(resources: Resources, live: LiveSession, take: Callable[[LiveSubject], Capture]) -> Capture:
    """Have `take` take a capture of the session and, where the session stands still for more than that, do the rest of
    the work, too. `take` is called in one thread, so that no step of the work waits for the event loop.
    """
    subject = LiveSubject(live, resources.places.sessions / live.record.row.session)
    live.capturing = asyncio.ensure_future(asyncio.to_thread(take, subject))
    return await live.capturing


async def capture_to_end(resources: Resources, live: LiveSession, wanted: Wanted, tried: str, loss: Loss) -> Capture:
    """As `capture`, for a session that the caller is about to end: the capture has the processes, unless the user has
    agreed to lose them. `tried`: what the caller does, as in `WaypointError`.

    Raises CannotCapture, which names `loss.command`, if the processes cannot be dumped, else as `capture`.
    """
    try:
        return await capture(
            resources, live, wanted._replace(tier=(wanted.tier or "respawn") if loss.agreed else "live")
        )
    except CannotCapture as error:
        on = f"branch {live.branch} {error.on if isinstance(error, CriuFailed) else ''}".rstrip()
        said = f"the processes that run there cannot be kept: {error.said}"
        next_step = f"{error.next_step}; or lose what they have in memory, and keep the rest: {loss.command}"
        raise CannotCapture(tried, on, said, next_step) from error


async def drop(resources: Resources, taken: Capture) -> None:
    """Remove a capture that is on no record."""
    await asyncio.to_thread(resources.captures.drop, taken)


def _record(resources: Resources, live: LiveSession, taken: Capture, wish: Wish) -> Capture:
    with resources.names.change("park" if wish.park else "checkpoint") as change:
        kept = placed(change, taken)
        change.add(kept)
        change.advance(live.branch, kept.id)
        if wish.name is not None:
            ref = Ref(kind="checkpoint", capture=kept.id, created=kept.created)
            found = change.ref(wish.name)
            if found is not None and _may_move(change, live.branch, wish, found):
                change.put(wish.name, ref)
            else:  # raises if a request on another branch has taken the name meanwhile
                change.create(wish.name, ref)
        if wish.park:
            change.forget(live.record.row)
    return kept


def _loss_of(branch: str, wish: Wish) -> Loss:
    force = " --force" if wish.force else ""
    command = f"waypoint checkpoint {wish.name} -b {branch} --park --tier respawn{force}"
    return Loss(wish.tier in ("files", "respawn"), command)


def _may_move(names: Reader, branch: str, wish: Wish, found: Ref) -> bool:
    """Whether the checkpoint may have the name that stands for `found` now."""
    return found.kind == "checkpoint" and wish.force and (not wish.within or belongs_to(names, found, branch))


def _check_name(resources: Resources, branch: str, wish: Wish) -> None:
    name = wish.name
    if name is None:
        return
    found = resources.names.ref(parse_name(name))
    if found is not None and not _may_move(resources.names, branch, wish, found):
        park = " --park" if wish.park else ""  # `stop --checkpoint`, which has no --force, comes here, too
        move = f", or move that one: waypoint checkpoint --force {name} -b {branch}{park}"
        can_move = _may_move(resources.names, branch, wish._replace(force=True), found)
        next_step = "choose another name" + (move if can_move else "")
        raise StateConflict("create", f"checkpoint {name}", f"there is a {found.kind} of this name", next_step)
    if found is None:
        resources.names.check_new(name, "checkpoint")
