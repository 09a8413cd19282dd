"""Restoring a capture on an existing branch: all of it, its files alone, or the state of its shell alone."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple

from waypoint.capture.dumping_later import is_awaited
from waypoint.capture.layers.layer import CaptureOptions
from waypoint.capture.layers.subject import Subject
from waypoint.capture.sealing import placed
from waypoint.capture.steps import Step, reach, reach_in_loop
from waypoint.launch.ground import start_plan
from waypoint.linux.tasks import cgroups, pauses
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import StateConflict
from waypoint.model.names import parse_name
from waypoint.model.records import HOST_IDS, Aspect, Capture, IdMap, ProcessesLayer, ShellLayer, Tier
from waypoint.processes import ports
from waypoint.records import reading
from waypoint.records.names import Names
from waypoint.session.birth import birth as births
from waypoint.session.birth import rights
from waypoint.session.birth.birth import Birth, plan_birth, size_of
from waypoint.session.birth.tiers import ONLY_FILES, Chosen, choose
from waypoint.session.birth.users import change_of
from waypoint.session.checkpoint import LossConsent, capture, capture_to_end, drop, in_capture_thread
from waypoint.session.end import Kept
from waypoint.session.live.resources import Resources, holding
from waypoint.session.live.session import LiveSession
from waypoint.session.live.subject import let_go_on, undo_freeze
from waypoint.session.losses import copy_losses, kept_losses
from waypoint.session.registry import Registry
from waypoint.session.rewind import noted, prepared, rewind_files
from waypoint.session.start import bring_up
from waypoint.terminal.exec.proof import prove
from waypoint.terminal.shell.dump import ShellDump
from waypoint.terminal.shell.putting_back import check_shell, parse_state, put_back, refuse
from waypoint.upper.contract import more_space
from waypoint.upper.rewind import Rewound


class Restored(NamedTuple):
    """`live`: the session on the branch. `replaced`: the capture that keeps the state before the restore: the live
    session, an aspect of it, or the files of a branch that was not live; None if there was no such state. `degraded`:
    parts that could not be restored, and parts of the state before that were not kept. `exchanged`: how the
    files of a live session were changed.
    """

    live: LiveSession
    replaced: Capture | None
    degraded: list[Degradation]
    exchanged: "Exchanged | None" = None


class Exchanged(NamedTuple):
    """`aside`: the capture of the session before its files were changed. `paused_ms`: how long it was frozen.
    `degraded`: the programs that use files which were replaced or removed.
    """

    aside: Capture
    files: Rewound
    paused_ms: float
    degraded: list[Degradation]


def branch_of(names: Names, name: str) -> str:
    """Return the branch on which `name` is restored by default. For a branch this is `name`. For a capture it is the
    branch that was captured, even if it was renamed since; if another branch has its name now, raise StateConflict.
    """
    ref = names.ref(name)
    return name if ref is not None and ref.kind == "branch" else reading.branch_of(names, names.resolve(name))


async def restore(
    sessions: Registry,
    branch: str,
    name: str,
    consent: LossConsent,
    attach_at: Mapping[str, str] = {},
    tier: Tier | None = None,
) -> Restored:
    """Restore the capture `name` as the session on `branch`. `attach_at`: where attached layers are placed, by kind.
    `tier`: None takes the best that works here.

    A live session on `branch` is captured, then replaced. The new session starts while the old one still exists, and
    its shell must answer before the old one ends. After a failure the old session continues.
    """
    rights.check_name(sessions.resources, name, "restore")
    origin = sessions.resources.names.resolve(name, branch)
    async with sessions.turn(branch):
        _check_rights(sessions.resources, branch, name, origin)
        live = await sessions.settled(branch)
        resources = sessions.resources
        origin = await asyncio.to_thread(resources.captures.settled, origin)
        chosen = await asyncio.to_thread(choose, resources, origin, tier)
        birth = (await _plan(resources, branch, origin, chosen))._replace(attach_at=attach_at)
        if live is None:
            replaced = _tip_beside(sessions.resources, branch, origin)
            (live,) = await bring_up(sessions, [birth], "restore")
            return Restored(live, replaced, copy_losses(live, origin))
        async with holding(sessions.resources.captures, origin):  # nobody may remove it before it is the branch's tip
            new, aside = await _replace(sessions, live, birth, name, consent)
        return Restored(new, aside, [*copy_losses(new, origin), *kept_losses(aside, "replaced")])


def _check_rights(resources: Resources, branch: str, name: str, origin: Capture) -> None:
    rights.check_name(resources, branch, f"restore {name} on")
    rights.check_origin(resources, origin.setting.user, "restore", name)


def _tip_beside(resources: Resources, branch: str, origin: Capture) -> Capture | None:
    ref = resources.names.ref(branch)
    return resources.names.capture(ref.capture) if ref and ref.capture and ref.capture != origin.id else None


async def restore_files(sessions: Registry, branch: str, name: str) -> Restored:
    """Give the session on `branch` the files of the capture `name`, while its processes continue. If the branch is not
    live, start a session with these files and a new shell.

    A live session is captured first, as the branch's tip. If the restore fails half-way, the files of this capture are
    restored.
    """
    resources = sessions.resources
    rights.check_name(resources, name, "restore")
    origin = resources.names.resolve(name, branch)
    async with sessions.turn(branch):
        _check_rights(resources, branch, name, origin)
        live = await sessions.settled(branch)
        if live is None:
            birth = (await _plan(resources, branch, origin, ONLY_FILES))._replace(shell=False)
            replaced = _tip_beside(resources, branch, origin)
            (live,) = await bring_up(sessions, [birth], "restore")
            return Restored(live, replaced, [])
        async with holding(resources.captures, origin):
            exchange = functools.partial(exchange_files, resources, live, origin)
            done = await in_capture_thread(resources, live, exchange)
        return Restored(live, done.aside, [*kept_losses(done.aside, "replaced"), *done.degraded], done)


def exchange_files(resources: Resources, live: LiveSession, origin: Capture, subject: Subject) -> Exchanged:
    """Capture the session `live`, as the branch's tip, then give it the files of `origin`. Blocks.

    From the capture on the session is frozen, so all of this runs in one thread that never waits for the event loop.
    """
    with prepared(resources, live, origin) as rewinding, contextlib.ExitStack() as standing:
        row = live.record.row
        standing.enter_context(more_space(resources.pool, row.tree, row.setting.limits.disk))
        standing.enter_context(pauses.announced())
        taken = resources.captures.take(subject, CaptureOptions(None, "replaced", keep_frozen=True, goes_on=True))
        captured = time.monotonic()
        standing.callback(subject.go_on)
        standing.callback(cgroups.thaw, live.record.cgroup)
        live.rested = None
        with noted(resources.places.sessions / row.session, origin, taken):
            aside = _record_aside(resources, live, taken, "files")
            reach(Step.RECORDED)
            try:
                with resources.captures.hold(aside) as held:
                    done = rewinding.carry_out(held.files)
                reach(Step.REWOUND)
            except BaseException:
                rewind_files(resources, live, aside)
                raise
        paused_ms = (taken.paused_ms or 0.0) + 1000 * (time.monotonic() - captured)
    return Exchanged(aside, done.files, round(paused_ms, 3), done.degraded)


async def restore_shell(sessions: Registry, branch: str, name: str) -> Restored:
    """Give the shell of the session on `branch` the state that it has in the capture `name`. The session is captured
    first, as the branch's tip.
    """
    resources = sessions.resources
    rights.check_name(resources, name, "restore")
    origin = resources.names.resolve(name, branch)
    async with sessions.turn(branch):
        _check_rights(resources, branch, name, origin)
        live = await sessions.settled_live(branch)
        if said := change_of(origin.setting.user, live.record.row.setting.user):
            way = f"restore the whole capture: waypoint restore {name} -b {branch}"
            raise StateConflict("restore the shell on", f"branch {branch}", said, way)
        then = await asyncio.to_thread(_read_state, resources, origin)
        await check_shell(live.shell, branch, then)
        taken = await capture(resources, live, CaptureOptions(None, "replaced"))
        try:
            if (shell := taken.layer(ShellLayer)) is None or shell.moment != "now":
                refuse(branch, "it does not answer")
            now = await asyncio.to_thread(_read_state, resources, taken)
        except BaseException:
            await drop(resources, taken)
            raise
        aside = await asyncio.to_thread(_record_aside, resources, live, taken, "shell")
        stays = await put_back(live.shell, branch, now, then, f"waypoint restore {name} --only shell")
        not_restored = [degradation("shell-value-not-restored", detail=said) for said in stays]
        return Restored(live, aside, [*not_restored, *kept_losses(taken, "replaced")])


def _read_state(resources: Resources, origin: Capture) -> ShellDump:
    with resources.captures.hold(origin) as held:
        return parse_state(origin, held.shell_state())


def _record_aside(resources: Resources, live: LiveSession, taken: Capture, only: Aspect) -> Capture:
    """Record `taken`, a capture of the session before its aspect `only` is replaced, as the branch's tip. If that
    fails, drop the capture. Blocks.
    """
    try:
        with resources.names.change("restore") as change:
            aside = placed(change, taken)
            change.add(aside)
            change.replace_aspect(live.branch, aside.id, only)
    except BaseException:
        resources.captures.drop(taken)
        raise
    return aside


async def _replace(
    sessions: Registry, live: LiveSession, birth: Birth, name: str, consent: LossConsent
) -> tuple[LiveSession, Capture]:
    """Replace the session `live` by the session that `birth` plans, made from the capture `name`. Return the new
    session and a capture of the old one. The capture is taken while the new session starts; from then on the old
    session stays frozen until it ends. If possible, CRIU dumps it only after the answer (capture/dumping_later.py).
    """
    resources = sessions.resources
    birth = births.with_standby(resources, birth)
    birth = births.with_ports(birth, resources.published.share(live.record.row.session, birth.row.session))
    try:
        await births.reserve(resources, [birth], instead_of=live)
    except BaseException:
        resources.published.release(birth.row.session)
        births.give_back(resources, birth)
        raise
    loop = asyncio.get_running_loop()
    accepted = asyncio.Event()
    on_accepted = functools.partial(loop.call_soon_threadsafe, accepted.set)
    options = CaptureOptions(
        None, "replaced", keep_frozen=True, dump_later=_can_dump_later(live, birth), on_accepted=on_accepted
    )
    taking = capture_to_end(resources, live, options, f"restore {name} in place of", consent)
    aside, new = await _exchange(resources, live, birth, taking, accepted)
    try:
        if isinstance(aside, BaseException):
            raise aside
        if isinstance(new, BaseException):
            raise new
        await reach_in_loop(Step.RESTORED)
        aside = _record_replaced(resources, live, birth, aside)
    except BaseException as error:
        if isinstance(new, LiveSession):
            new.release()
        await births.undo(resources, birth.row)
        if isinstance(aside, Capture):
            await _let_go_on(resources, live, aside)
        births.raise_in_words(error, live.branch)
    births.note_use(resources, [birth])
    live.successor = new
    live.terminal.epitaph = "the session was replaced: a capture was restored in its place"
    sessions.enlist(new)
    if is_awaited(aside):
        sessions.endings.leave(live, aside)
    await reach_in_loop(Step.CONFIRMED)
    if not is_awaited(aside):
        await asyncio.shield(sessions.endings.begin(live, Kept(aside)))
    return new, aside


def _record_replaced(resources: Resources, live: LiveSession, birth: Birth, aside: Capture) -> Capture:
    with resources.names.change("restore") as change:
        aside = placed(change, aside)
        change.add(aside)
        if is_awaited(aside):
            change.leave(live.record.row, aside.id)
        else:
            change.forget(live.record.row)
        change.ready(birth.row, birth.origin.id if birth.origin else None)
        change.replace_session(live.branch, aside.id)
    return aside


async def _let_go_on(resources: Resources, live: LiveSession, aside: Capture) -> None:
    """Let the session go on that was captured into `aside` to be replaced, and drop this capture."""
    if is_awaited(aside):
        await asyncio.to_thread(undo_freeze, live, resources.places.sessions / live.record.row.session)
    let_go_on(live)
    await drop(resources, aside)


def _can_dump_later(live: LiveSession, birth: Birth) -> bool:
    """Whether the session `live` may be dumped after the new one runs: they share nothing that the new one changes."""
    return not any(setting.net == "host" or setting.binds for setting in (live.record.row.setting, birth.row.setting))


async def _exchange(
    resources: Resources, live: LiveSession, birth: Birth, taking: Coroutine[Any, Any, Capture], accepted: asyncio.Event
) -> tuple[Capture | BaseException, LiveSession | BaseException]:
    """Await `taking`, which captures the session `live` and leaves it frozen, and start the session of `birth`. Return
    the results or exceptions of both.

    Both run concurrently once the checks before the capture have set `accepted`: a refusal is known before the new
    session is begun. On the host's network both sessions may need the same ports, and `live` can share its ports only
    by changing its sockets; the capture must not contain this change, so it is taken first.
    """
    capturing, checking = asyncio.ensure_future(taking), asyncio.ensure_future(accepted.wait())
    try:
        await asyncio.wait([capturing, checking], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        capturing.cancel()
        raise
    finally:
        checking.cancel()
    if birth.row.setting.net != "host" and accepted.is_set():
        return await asyncio.gather(capturing, _bring_up_proven(resources, birth), return_exceptions=True)
    (aside,) = await asyncio.gather(capturing, return_exceptions=True)
    if isinstance(aside, BaseException):
        return aside, aside
    with contextlib.ExitStack() as sharing:
        root = _ids_of(birth).outside(0)
        await asyncio.to_thread(sharing.enter_context, ports.shared(live.processes(), root))
        (new,) = await asyncio.gather(_bring_up_proven(resources, birth), return_exceptions=True)
    return aside, new


def _ids_of(birth: Birth) -> IdMap:
    layer = birth.origin.layer(ProcessesLayer) if birth.origin and birth.processes else None
    return layer.ids if layer is not None else HOST_IDS


async def _bring_up_proven(resources: Resources, birth: Birth) -> LiveSession:
    """Start a session and wait until its shell answers. After a failure the caller must undo the birth."""
    origin = birth.origin
    assert origin is not None
    new = await births.make_session(resources, birth)
    try:
        is_new = not new.record.origin and start_plan.has_hooks(start_plan.shell_of(birth.row.setting))
        if new.restarted is not None and new.restarted.in_foreground:
            return new  # the shell has answered before it began this program (start_again.py)
        shell = origin.layer(ShellLayer)
        # A restored shell must answer only if it answered when it was captured.
        must_answer = is_new or (shell is not None and shell.moment == "now")
        with births.offering_files(birth.row.branch, origin):
            await prove(new.shell, is_new=is_new, must_answer=must_answer)
    except BaseException:
        new.release()
        raise
    return new


async def _plan(resources: Resources, branch: str, origin: Capture, chosen: Chosen) -> Birth:
    size, name = size_of(origin), parse_name(branch)
    return await asyncio.to_thread(plan_birth, resources, name, origin, origin.setting, size, chosen)
