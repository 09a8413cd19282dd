"""Capturing the session of a branch, and naming the capture."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from waypoint.capture.layers.layer import Staged
from waypoint.capture.sealing import placed
from waypoint.capture.steps import Step, reach
from waypoint.capture.taking import WITHOUT_PROCESSES, Wanted, is_disk_full
from waypoint.linux.calls import powers
from waypoint.model.details.process_facts import first_few
from waypoint.model.errors import CannotCapture, Failed, StateConflict
from waypoint.model.names import parse_name
from waypoint.model.paths import quoted
from waypoint.model.records import Capture, Ref, Tier
from waypoint.processes.criu.causes import CriuAccident, CriuFailed
from waypoint.session.birth.rights import bounded, check_name, check_origin
from waypoint.session.end import Kept
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.session.live.subject import LiveSubject, let_go_on, subject_of
from waypoint.session.registry import Registry
from waypoint.store.reading import RecordReader, belongs_to

Prepare = Callable[[LiveSession], Awaitable[Sequence[str]]]
"""What is done before a capture. Returns, in words, what failed of it, which the capture then says."""


class Wish(NamedTuple):
    """The checkpoint that is asked for.

    `name` None: only the branch's tip moves. `tier` None: `live` if the processes can be dumped, else `respawn`; with
    `park`: `live` for all of them. `force`: if a checkpoint has this name already, move the name. `park`: end the
    session with the checkpoint; `lose`: with the loss of what cannot be kept. `within`: a process of the session asks,
    so only a name that belongs to its own branch may be moved. `undone`: an undo parks it, after which the branch is
    what it was before the session, or not there. `attached`: what is to be attached to it.
    """

    name: str | None = None
    tier: Tier | None = None
    message: str = ""
    force: bool = False
    park: bool = False
    within: bool = False
    undone: bool = False
    lose: bool = False
    attached: Staged | None = None


class Loss(NamedTuple):
    """The agreement that those processes of a session which is replaced or ended be lost that cannot be kept: the
    capture is the best that can be had, as a checkpoint without `--tier` makes it.

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
        wanted = Wanted(wish.tier, "checkpoint", wish.message, hold=wish.park, said=said, attached=wish.attached)
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
        await asyncio.to_thread(reach, Step.RECORDED)
        if wish.park:
            await asyncio.shield(sessions.endings.begin(live, Kept(kept, is_undone=wish.undone)))
        return kept


async def as_it_is_now(sessions: Registry, name: str, tried: str, prepare: Prepare | None = None) -> Capture:
    """The capture that `name` stands for, for whoever wants a copy of it. A live branch stands for what it is now: its
    session is captured, after `prepare`, and the capture is recorded as the branch's tip.

    `tried`: as in WaypointError. The caller has the turn of the name. Raises UnknownName, NotAllowed, StateConflict
    (its session cannot be reached), and as `Captures.take` and `Names.change`.
    """
    resources = sessions.resources
    check_name(resources, name, tried)
    live = sessions.find(name)
    if live is not None:  # before it is captured
        await asyncio.to_thread(bounded, resources, live.record.row.setting)
    origin = await _capture_tip(sessions, name, prepare) or resources.names.resolve(name)
    check_origin(resources, origin.setting.user, tried, name)
    return origin


async def _capture_tip(sessions: Registry, branch: str, prepare: Prepare | None) -> Capture | None:
    """Capture the session on `branch`, and record the capture as the branch's tip; None if the branch is not live."""
    live = await sessions.settled(branch)
    if live is None:
        return None
    said = await prepare(live) if prepare is not None else ()
    taken = await capture(sessions.resources, live, Wanted(None, "forked", said=said))
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
    the work, too. `take` is called in one thread, so that no step of the work waits for the event loop. The thread
    works on if the caller is cancelled; `live.capturing` is done when it has ended.
    """
    subject = subject_of(resources, live)
    live.capturing = asyncio.ensure_future(asyncio.to_thread(take, subject))
    return await asyncio.shield(live.capturing)


async def capture_to_end(resources: Resources, live: LiveSession, wanted: Wanted, tried: str, loss: Loss) -> Capture:
    """As `capture`, for a session that the caller is about to end: the capture has all processes, unless the user has
    agreed to lose those that cannot be kept, or this daemon can keep none, and so nothing is lost that could be had.
    With the agreement, an accident of CRIU costs all processes, and the capture says so. `tried`: what the caller does,
    as in `WaypointError`.

    Raises CannotCapture, which names the programs and `loss.command`, if some cannot be dumped, else as `capture`.
    """
    is_agreed = loss.agreed or not powers.is_machines()
    try:
        return await capture(resources, live, wanted._replace(tier=wanted.tier if is_agreed else "live"))
    except CriuAccident as error:
        if not loss.agreed or wanted.tier is not None or is_disk_full(error):
            raise
        lost = [*wanted.said, f"{WITHOUT_PROCESSES}: {error.said}"]
        return await capture(resources, live, wanted._replace(tier="respawn", said=lost))
    except CannotCapture as error:
        on = f"branch {live.branch} {error.on if isinstance(error, CriuFailed) else ''}".rstrip()
        said = f"the processes that run there cannot be kept: {error.said}"
        going = first_few(error.in_the_way) or "all"
        next_step = f"{error.next_step}; or lose what some have in memory ({going}), and keep the rest: {loss.command}"
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
    command = f"waypoint checkpoint {wish.name} -b {branch}{_noted(wish)} --park --lose-processes{force}"
    return Loss(wish.lose or wish.tier in ("files", "respawn"), command)


def _noted(wish: Wish) -> str:
    return f" -m {quoted(wish.message)}" if wish.message else ""


def _may_move(names: RecordReader, branch: str, wish: Wish, found: Ref) -> bool:
    """Whether the checkpoint may have the name that stands for `found` now."""
    return found.kind == "checkpoint" and wish.force and (not wish.within or belongs_to(names, found, branch))


def _check_name(resources: Resources, branch: str, wish: Wish) -> None:
    name = wish.name
    if name is None:
        return
    found = resources.names.ref(parse_name(name))
    if found is not None and not _may_move(resources.names, branch, wish, found):
        typed = f"{_noted(wish)}{f' --tier {wish.tier}' if wish.tier else ''}"
        typed += " --park" if wish.park else ""  # `stop --checkpoint`, which has no --force, comes here, too
        move = f", or move that one: waypoint checkpoint --force {name} -b {branch}{typed}"
        can_move = _may_move(resources.names, branch, wish._replace(force=True), found)
        next_step = "choose another name" + (move if can_move else "")
        raise StateConflict("create", f"checkpoint {name}", f"there is a {found.kind} of this name", next_step)
    if found is None:
        resources.names.check_new(name, "checkpoint")
