"""Capturing the session of a branch, and naming the capture."""

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import msgspec

from waypoint.branch.undo import IDLE_PARK
from waypoint.capture.layers.layer import CaptureOptions
from waypoint.capture.sealing import placed
from waypoint.capture.steps import Step, reach_in_loop
from waypoint.capture.taking import is_disk_full
from waypoint.linux.calls import abilities
from waypoint.model.conditions import Degradation
from waypoint.model.errors import CannotCapture, Failed, StateConflict
from waypoint.model.names import is_name, parse_name
from waypoint.model.records import Capture, Point, Reason, Ref, Tier
from waypoint.processes.criu.causes import CriuFailed
from waypoint.records.change import Change
from waypoint.records.reading import Reader, belongs_to
from waypoint.session.birth.rights import check_name, may_use
from waypoint.session.end import Kept
from waypoint.session.live.resources import Resources
from waypoint.session.live.rest import is_as_in
from waypoint.session.live.session import LiveSession
from waypoint.session.live.subject import LiveSubject, let_go_on
from waypoint.session.registry import Registry

T = TypeVar("T")

POINT = "point"
"""The verb of operations that make a point (Point). 'undo' without a number leaves them out."""
_PARKS: dict[Reason, str] = {"idle": IDLE_PARK, "expired": "ttl-park", "stopped": "end"}


class Checkpointed(NamedTuple):
    """`reused`: nothing was captured, because the branch's tip has the session as it is."""

    capture: Capture
    reused: bool = False


Prepare = Callable[[LiveSession], Awaitable[Sequence[Degradation]]]
"""Work before a capture. Returns its failures, for `Capture.degraded`."""


class LossConsent(NamedTuple):
    """Whether the user has agreed to lose the processes of a session that is replaced or ended. `command`: the command
    that the error proposes to a user who has not agreed.
    """

    agreed: bool
    command: str

    @classmethod
    def of(cls, command: str, *, agreed: bool) -> "LossConsent":
        """The consent of a request to replace or end a session. In a home without root, which can keep no processes,
        every request consents.
        """
        return cls(agreed or not abilities.own().dumps, command)


async def checkpoint(
    sessions: Registry,
    branch: str,
    options: CaptureOptions,
    consent: LossConsent | None = None,
    agree: Callable[[], Awaitable[object]] | None = None,
    prepare: Prepare | None = None,
) -> Checkpointed:
    """Capture the session on `branch`, and record the capture as the branch's tip and under `options.name`. If the tip
    has the session as it is, the tip gets this name (`_find_same`).

    With `options.keep_frozen` the session ends. `consent`: to losing its processes then; if it is None, the user
    consents by an `options.tier` below `live`. `prepare`: awaited before the capture. `agree`: awaited before the
    capture is recorded; it may raise to prevent that. After any failure nothing is recorded, and the session continues.
    """
    resources = sessions.resources
    _check_name_free(resources, branch, options)
    async with sessions.turn(branch, *([options.name] if options.force and options.name else [])):
        check_name(resources, branch, "checkpoint")
        if options.name is not None:
            check_name(resources, options.name, "move")
        live = await sessions.settled_live(branch)
        _check_name_free(resources, branch, options)
        if agree is None and (same := _find_same(resources, live, options)) is not None:
            _name(resources, live, same, options)
            return Checkpointed(same, reused=True)
        degraded = await prepare(live) if prepare is not None else ()
        options = options._replace(degraded=degraded)
        if options.keep_frozen:
            taken = await capture_to_end(resources, live, options, "park", consent or _consent_of(branch, options))
        else:
            taken = await capture(resources, live, options)
        try:
            if agree is not None:
                await agree()
            kept = _record(resources, live, taken, options)
        except BaseException:
            await drop(resources, taken)
            if options.keep_frozen:
                let_go_on(live)
            raise
        await reach_in_loop(Step.RECORDED)
        if options.keep_frozen:
            await asyncio.shield(sessions.endings.begin(live, Kept(kept, is_undone=options.undone)))
        return Checkpointed(kept)


async def capture_tip(
    sessions: Registry, branch: str, reason: Reason, prepare: Prepare | None = None, tier: Tier | None = None
) -> Capture | None:
    """Capture the session on `branch`, and record the capture as the branch's tip. Return None if the branch is not
    live. The caller must have the turn (lock) of the branch. `tier`: as in CaptureOptions.
    """
    live, taken = await _capture_live(sessions, branch, CaptureOptions(tier, reason), prepare)
    if live is None or taken is None:
        return None
    try:
        return _record(sessions.resources, live, taken, CaptureOptions())
    except BaseException:
        await drop(sessions.resources, taken)
        raise


@contextlib.asynccontextmanager
async def capture_aside(sessions: Registry, branch: str, prepare: Prepare) -> AsyncIterator[Capture | None]:
    """Capture the session on `branch` for the `async with` block, at whose end the capture is removed unless the block
    has recorded it. None if the branch is not live. The caller must have the turn (lock) of the branch.
    """
    _, taken = await _capture_live(sessions, branch, CaptureOptions("respawn"), prepare)
    if taken is None:
        yield None
        return
    try:
        yield placed(sessions.resources.names, taken)
    finally:
        if not sessions.resources.names.captures_of([taken.id], may_lack=True):
            await asyncio.shield(asyncio.ensure_future(drop(sessions.resources, taken)))


async def _capture_live(
    sessions: Registry, branch: str, options: CaptureOptions, prepare: Prepare | None
) -> tuple[LiveSession, Capture] | tuple[None, None]:
    live = await sessions.settled(branch)
    if live is None:
        return None, None
    degraded = await prepare(live) if prepare is not None else ()
    return live, await capture(sessions.resources, live, options._replace(degraded=degraded))


async def capture(resources: Resources, live: LiveSession, options: CaptureOptions) -> Capture:
    """Take a capture of the session, which the caller must record or drop. The caller must have the turn (lock) of the
    branch. If the disk is full, remove unneeded files and try once more.
    """
    take = functools.partial(resources.captures.take, options=options)
    try:
        return await in_capture_thread(resources, live, take)
    except Failed as error:
        if not is_disk_full(error) or not await resources.relieve():
            raise
    return await in_capture_thread(resources, live, take)


async def in_capture_thread(resources: Resources, live: LiveSession, work: Callable[[LiveSubject], T]) -> T:
    """Call `work`, which takes a capture of the session, in one thread, so that it never waits for the event loop while
    the session is frozen.
    """
    subject = LiveSubject(live, resources.places.sessions / live.record.row.session)
    live.capturing = task = asyncio.ensure_future(_in_own_thread(functools.partial(work, subject)))
    return await task


async def _in_own_thread(work: Callable[[], T]) -> T:
    """Call `work` in a new thread, because captures of slow sessions must not use up the threads of the home."""
    executor = ThreadPoolExecutor(1, "capture")
    try:
        context = contextvars.copy_context()  # as asyncio.to_thread does
        return await asyncio.get_running_loop().run_in_executor(executor, context.run, work)
    finally:
        executor.shutdown(wait=False)


async def capture_to_end(
    resources: Resources, live: LiveSession, options: CaptureOptions, tried: str, consent: LossConsent
) -> Capture:
    """Take a capture of a session that the caller is about to end. It contains the processes, unless the user has
    agreed to lose them; if they cannot be captured, this raises CannotCapture. `tried`: the caller's action, for that
    error.
    """
    tier = (options.tier or "respawn") if consent.agreed else "live"
    try:
        return await capture(resources, live, options._replace(tier=tier))
    except CannotCapture as error:
        on = f"branch {live.branch} {error.on if isinstance(error, CriuFailed) else ''}".rstrip()
        said = f"the session's processes cannot be captured: {error.said}"
        next_step = f"{error.next_step}; or keep the files without the processes: {consent.command}"
        raise CannotCapture(tried, on, said, next_step, code=error.code) from error


async def drop(resources: Resources, taken: Capture) -> None:
    """Remove a capture that is not on record."""
    await asyncio.to_thread(resources.captures.drop, taken)


def _record(resources: Resources, live: LiveSession, taken: Capture, options: CaptureOptions) -> Capture:
    verb = (
        _PARKS.get(options.reason, "park") if options.keep_frozen else "checkpoint" if options.point is None else POINT
    )
    with resources.names.change(verb) as change:
        kept = placed(change, taken)
        change.add(kept)
        change.advance(live.branch, kept.id)
        if options.point is not None:
            _make_point(change, live, kept, options.point)
        _put_name(change, live, kept, options)
        if options.keep_frozen:
            change.forget(live.record.row)
        if options.undone:
            change.replace_session(live.branch, kept.id)
    return kept


def _make_point(change: Change, live: LiveSession, kept: Capture, point: Point) -> None:
    ref = change.ref(live.branch)
    change.point = msgspec.structs.replace(point, capture=kept.id, branch_created=ref.created if ref else 0.0)


def _put_name(change: Change, live: LiveSession, kept: Capture, options: CaptureOptions) -> None:
    if options.name is None:
        return
    ref = Ref(kind="checkpoint", capture=kept.id, created=kept.created)
    found = change.ref(options.name)
    if found is not None and _may_move(change, live.branch, options, found):
        change.put(options.name, ref)
    else:  # raises if a request on another branch has taken the name meanwhile
        change.create(options.name, ref)


def _find_same(resources: Resources, live: LiveSession, options: CaptureOptions) -> Capture | None:
    """The tip of the session's branch, if it has the session as it is (session/live/rest.py) and everything that is
    requested. The caller must have the turn (lock) of the branch.
    """
    rested, names = live.rested, resources.names
    is_more = options.anew or options.keep_frozen or (options.attach and options.point is None)
    if rested is None or is_more or options.tier not in (None, "live"):
        return None
    ref = names.ref(live.branch)
    if ref is None or ref.capture != rested.capture or names.standing(rested.capture).removed:
        return None
    tip = names.capture(rested.capture)
    is_other = options.message not in ("", tip.message) or any(one.get("attached") for one in tip.layers.values())
    if tip.reason != options.reason or (is_other and options.point is None):
        return None
    return tip if is_as_in(rested, live.record, live.terminal, tip) else None


def _name(resources: Resources, live: LiveSession, same: Capture, options: CaptureOptions) -> None:
    """Let `options.name` or the point `options.point` stand for a capture that exists."""
    if options.point is not None:
        with resources.names.change(POINT) as change:
            _make_point(change, live, same, options.point)
        return
    wanted = Ref(kind="checkpoint", capture=same.id, created=same.created)
    if options.name is not None and resources.names.ref(options.name) != wanted:
        with resources.names.change("checkpoint") as change:
            _put_name(change, live, same, options)


def _consent_of(branch: str, options: CaptureOptions) -> LossConsent:
    force = " --force" if options.force else ""
    command = f"waypoint checkpoint {options.name} -b {branch} --park --tier respawn{force}"
    return LossConsent(options.tier in ("files", "respawn"), command)


def _may_move(names: Reader, branch: str, options: CaptureOptions, found: Ref) -> bool:
    return found.kind == "checkpoint" and options.force and (not options.within or belongs_to(names, found, branch))


def _whose(resources: Resources, branch: str, found: Ref) -> str:
    """The branch of another checkpoint, in words, if the caller may use it."""
    if found.kind != "checkpoint" or found.capture is None:
        return ""
    captures = resources.names.captures_of([found.capture], may_lack=True).values()
    others = [one for one in captures if one.branch != branch and may_use(resources, one.setting.user.uid)]
    return "".join(f", of branch {one.branch}" for one in others)


def _check_name_free(resources: Resources, branch: str, options: CaptureOptions) -> None:
    name = options.name
    if name is None:
        return
    found = resources.names.ref(parse_name(name))
    if found is not None and not _may_move(resources.names, branch, options, found):
        park = " --park" if options.keep_frozen else ""  # also for `stop --checkpoint`, which has no --force
        move = f", or replace that checkpoint: waypoint checkpoint --force {name} -b {branch}{park}"
        can_move = _may_move(resources.names, branch, options._replace(force=True), found)
        own = f"{branch}/{name}"
        is_free = not name.startswith(f"{branch}/") and is_name(own) and resources.names.ref(own) is None
        other = f", such as {own}" if is_free and not belongs_to(resources.names, found, branch) else ""
        next_step = f"choose another name{other}" + (move if can_move else "")
        said = f"there is a {found.kind} of this name{_whose(resources, branch, found)}"
        raise StateConflict("create", f"checkpoint {name}", said, next_step, code="name-taken")
    if found is None:
        resources.names.check_new(name, "checkpoint")
