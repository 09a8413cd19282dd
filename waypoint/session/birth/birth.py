"""Starting sessions: one, or several from the same capture; all of them, or none."""

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, NoReturn, TypeVar

import msgspec

from waypoint.capture.captures import HeldCapture
from waypoint.capture.steps import Step, reach, reach_in_loop
from waypoint.launch import externals
from waypoint.launch.externals import Misplaced
from waypoint.launch.ground.limits import Bounds, fill_in, shared_memory_bytes
from waypoint.launch.launcher_link import LauncherDied
from waypoint.launch.templates import LEAST_BYTES
from waypoint.linux.tasks import cgroups
from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import CannotCapture, Failed, WaypointError, of_machine
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, LiveRow, Published, Setting, TerminalLayer
from waypoint.model.stages import Stage
from waypoint.processes.criu.causes import CriuFailed
from waypoint.session.birth import fresh, revive, room, shell_back, start_again
from waypoint.session.birth.rights import check_session_count, is_restricted, restricted
from waypoint.session.birth.tiers import Chosen, started_again
from waypoint.session.live import record
from waypoint.session.live.record import RuntimeRecord
from waypoint.session.live.resources import Resources, holding
from waypoint.session.live.session import LiveSession
from waypoint.session.live.standbys import Standby
from waypoint.upper.contract import NEXT_STEPS
from waypoint.upper.placing import Where

log = logging.getLogger(__name__)

T = TypeVar("T")

_MIB = 1 << 20
_AT_ONCE = 4 * (os.cpu_count() or 1)  # sessions that are started at the same time; more would only wait for each other


class Birth(NamedTuple):
    """The plan of a new session. `origin`: the capture from which it starts, or None for the plain base. `size`: rows
    and columns of its terminal. `chosen`: the tier at which the origin is restored; below `live` it gets a new shell.
    `must_enter`: whether a new shell must start in the folder of the setting; else it may start in the user's home.
    `shell`: whether a new shell gets the state of the origin's shell. `attach_at`: paths in the session for attached
    layers of the origin, by kind. `exact_ports`: whether the ports of the setting must have the same numbers on the
    machine; else a number that is in use is replaced. `standby`: the frozen copy that becomes the session.
    """

    row: LiveRow
    origin: Capture | None
    size: tuple[int, int]
    chosen: Chosen
    must_enter: bool = False
    shell: bool = True
    attach_at: Mapping[str, str] = MappingProxyType({})
    exact_ports: bool = False
    standby: Standby | None = None

    @property
    def processes(self) -> bool:
        """Whether the origin's processes are restored."""
        return self.origin is not None and self.chosen.tier == "live"


def plan_birth(
    resources: Resources,
    branch: str,
    origin: Capture | None,
    setting: Setting,
    size: tuple[int, int],
    chosen: Chosen,
) -> Birth:
    """Return the plan of a session with `setting` for the caller, whose time to live begins now. Raises NotAllowed."""
    setting, session, started = restricted(resources, setting), new_id(), time.time()
    setting = msgspec.structs.replace(setting, since=started if setting.ttl else 0.0)
    row = LiveRow(branch=branch, session=session, tree=session, started=started, setting=setting)
    return Birth(row, origin, size, chosen)


def size_of(origin: Capture) -> tuple[int, int]:
    """Return rows and columns of the terminal in a capture; 24 and 80 if it has no terminal."""
    terminal = origin.layer(TerminalLayer)
    return (terminal.rows, terminal.cols) if terminal is not None else (24, 80)


Failures = dict[str, WaypointError]
"""Why sessions could not start, by branch."""


async def bring_up_all(
    resources: Resources, births: Sequence[Birth], verb: str, failures: Failures | None = None
) -> list[LiveSession]:
    """Start the sessions of all `births` concurrently. After a failure nothing of any session is left. With `failures`,
    nothing of the sessions that cannot start, which are added to it, and the others start. If none can, the error of
    the first is raised. `verb`: of the entry in the operation log.
    """
    origins = {birth.origin.id: birth.origin for birth in births if birth.origin is not None}
    async with holding(resources.captures, *origins.values()):  # until names refer to them
        return await _bring_up_all(resources, births, verb, failures)


async def _bring_up_all(
    resources: Resources, births: Sequence[Birth], verb: str, failures: Failures | None
) -> list[LiveSession]:
    births = [with_standby(resources, birth) for birth in births]
    asked = {birth.row.session: birth.row.setting.publish for birth in births}
    try:
        births = _with_ports(resources, births)
        await reserve(resources, births)
    except BaseException:
        for birth in births:
            resources.published.release(birth.row.session)
            give_back(resources, birth)
        raise
    places = asyncio.Semaphore(_AT_ONCE)
    begun = [asyncio.ensure_future(_make_in_turn(places, resources, birth)) for birth in births]
    able: Sequence[Birth] = births
    try:
        if failures is not None:
            able = await _take_out_failed(resources, births, begun, failures)
        kept = {birth.row.session for birth in able}
        tasks = (task for birth, task in zip(births, begun, strict=True) if birth.row.session in kept)
        found = await asyncio.gather(*tasks)
        await reach_in_loop(Step.RESTORED)
        with resources.names.change(verb) as change:
            for birth in able:
                change.ready(birth.row, birth.origin.id if birth.origin else None)
    except BaseException as error:
        await asyncio.gather(*begun, return_exceptions=True)
        for task in begun:
            if not task.cancelled() and task.exception() is None:
                task.result().release()
        for birth in births:
            await undo(resources, birth.row)
        raise_in_words(error, births[0].row.branch)
    await reach_in_loop(Step.CONFIRMED)
    note_use(resources, able)
    for live in found:
        pairs = zip(asked[live.record.row.session], live.record.row.setting.publish, strict=True)
        live.moved_ports = [
            degradation("port-moved", str(one.session), f"{one.host}, {now.host}")
            for one, now in pairs
            if one.host not in (0, now.host)
        ]
    return list(found)


def with_standby(resources: Resources, birth: Birth) -> Birth:
    """Let a standby become the session of `birth`, if one is ready that is what the restore would make. If the birth is
    not carried out, the caller calls `give_back`, or `undo` once `make_session` was called.
    """
    if birth.origin is None or not birth.processes or birth.attach_at:
        return birth
    standby = resources.standbys.take(birth.origin.id, birth.row.setting, birth.size)
    if standby is None:
        return birth
    row = msgspec.structs.replace(birth.row, session=standby.row.session, tree=standby.row.tree)
    return birth._replace(row=row, standby=standby)


def give_back(resources: Resources, birth: Birth) -> None:
    if birth.standby is not None:
        resources.standbys.add(birth.standby)


def note_use(resources: Resources, births: Iterable[Birth]) -> None:
    """Let the service of standbys know which captures were restored with their processes."""
    for birth in births:
        if birth.origin is not None and birth.processes:
            resources.standbys.on_use(birth.origin)


def _with_ports(resources: Resources, births: Sequence[Birth]) -> list[Birth]:
    """Open the ports of all births on the machine, or none. Return the births with their numbers."""
    found: list[Birth] = []
    privileged = not is_restricted(resources)
    try:
        for birth in births:
            row, wanted = birth.row, birth.row.setting.publish
            take = functools.partial(resources.published.take, row.session, wanted, privileged=privileged)
            found.append(with_ports(birth, take(exactly=birth.exact_ports)) if wanted else birth)
    except BaseException:
        for birth in found:
            resources.published.release(birth.row.session)
        raise
    return found


def with_ports(birth: Birth, publish: list[Published]) -> Birth:
    setting = msgspec.structs.replace(birth.row.setting, publish=publish)
    return birth._replace(row=msgspec.structs.replace(birth.row, setting=setting))


async def _make_in_turn(places: asyncio.Semaphore, resources: Resources, birth: Birth) -> LiveSession:
    async with places:
        return await make_session(resources, birth)


async def _take_out_failed(
    resources: Resources,
    births: Sequence[Birth],
    begun: Sequence[asyncio.Future[LiveSession]],
    failures: Failures,
) -> list[Birth]:
    """Wait until each session runs or has failed, undo those that have failed, and return the others."""
    await asyncio.gather(*begun, return_exceptions=True)
    able: list[Birth] = []
    first: BaseException | None = None
    for birth, task in zip(births, begun, strict=True):
        error = task.exception()
        if error is None:
            able.append(birth)
            continue
        known = in_words(error, birth.row.branch)
        if not isinstance(known, WaypointError):  # a bug
            raise known
        first, failures[birth.row.branch] = first or error, known
        await undo(resources, birth.row)
    if first is not None and not able:
        raise first
    return able


async def reserve(
    resources: Resources, births: Sequence[Birth], *, instead_of: LiveSession | None = None, to_run: bool = True
) -> None:
    """Record that the sessions of `births` are being started, unless their processes certainly cannot be restored.
    `instead_of`: the live session of the branch, which the new one replaces. `to_run`: False if the processes are
    restored only to be compared (proof.py). A birth with a standby has a record already.
    """
    origin, cold = births[0].origin, [birth for birth in births if birth.standby is None]
    await asyncio.to_thread(resources.pool.check_writable)
    if cold and cold[0].processes and origin is not None:
        leaving: Sequence[int] | None = instead_of.processes() if instead_of is not None else []
        if not to_run:
            leaving = None
        with offering_files(births[0].row.branch, origin):
            await asyncio.to_thread(_check, resources, cold, origin, leaving)
    if instead_of is None:
        check_session_count(resources, len(births))
        room.check_descriptors(len(births))
    if not cold:
        return
    await asyncio.to_thread(resources.pool.grow_if_needed)
    with resources.names.change("reserve") as change:
        for birth in cold:
            change.reserve(birth.row, beside=instead_of is not None)


@contextlib.contextmanager
def offering_files(branch: str, origin: Capture) -> Iterator[None]:
    """Add to an error of the `with` block how the files of `origin` can be restored without its processes."""
    try:
        yield
    except WaypointError as error:
        way = f"to restore only the files: waypoint restore {origin.id[:12]} -b {branch} --only files"
        error.next_step = f"{error.next_step}; {way}" if error.next_step else way
        raise


def _check(resources: Resources, births: Sequence[Birth], origin: Capture, leaving: Sequence[int] | None) -> None:
    with resources.captures.hold(origin) as held:
        held.check(len(births), leaving)
        room.check(resources.places, births[0].row.setting, origin, len(births))
        revive.check_outside(resources.places, births[0].row.setting, origin)
        needed, limits = held.memory_bytes, births[0].row.setting.limits
        most = shared_memory_bytes(limits)
        if needed > most:
            said = (
                f"its files in /dev/shm need {needed >> 20} MiB, but may have "
                f"{most >> 20} MiB, half of the session's memory"
            )
            memory = 2 * (needed + held.processes.size_bytes) + _MIB >> 20
            more = f"give the session more memory: waypoint shell NEW --from {origin.id[:12]} --memory {memory}M"
            raise CannotCapture("restore the processes of", origin.id[:12], said, more)


async def make_session(resources: Resources, birth: Birth) -> LiveSession:
    """Make the session of a reserved birth: files, cgroup, mounts, processes, terminal. If CRIU fails twice, start the
    programs again instead, unless the birth needs the processes. After a failure the caller calls `undo`.
    """
    if birth.standby is not None and birth.origin is not None:
        live = await _woken(resources, birth, birth.standby, birth.origin)
        if live is not None:
            return live
        await asyncio.to_thread(_clear, resources, birth.row)
        await asyncio.to_thread(_check, resources, [birth], birth.origin, ())
        birth = birth._replace(standby=None)
    try:
        return await in_two_tries(resources, birth, _make_once)
    except CriuFailed as error:
        if not birth.chosen.starts_again:
            raise CannotCapture(error.tried, error.on, error.said, error.next_step, code=error.code) from error
        log.warning("start of a session on %s, second try: %s", birth.row.branch, error)
        lower = birth._replace(chosen=started_again(error, error.diagnosis.next_step))
    await asyncio.to_thread(_clear, resources, birth.row)
    return await in_two_tries(resources, lower, _make_once)


async def _woken(resources: Resources, birth: Birth, standby: Standby, origin: Capture) -> LiveSession | None:
    """Make the session from a standby. None if a restore would make another one now, or the standby has ended."""
    try:
        if await asyncio.to_thread(_still_fits, resources, standby):
            entry, lost = standby.entry, list[Degradation]()
            if not standby.is_timeless:
                lost = [degradation("clock-went-on", detail=f"{time.monotonic() - standby.made_at:.1f} s")]
            entry = msgspec.structs.replace(entry, row=birth.row, lowered=[*entry.lowered, *lost])
            return revive.wake(resources, entry, origin)
    except (WaypointError, OSError) as error:
        log.warning("a standby for %s cannot be used: %s", birth.row.branch, error)
    return None


def _still_fits(resources: Resources, standby: Standby) -> bool:
    if resources.places.follow_host() != standby.mounts or not standby.entry.is_alive():
        return False
    with resources.captures.hold(standby.origin) as held:
        return not held.has_changed_base()


async def in_two_tries(resources: Resources, birth: Birth, make: Callable[[Resources, Birth], Awaitable[T]]) -> T:
    """Await `make`. If CRIU failed, the launcher was killed, or the host's mounts have changed meanwhile, await it
    again from the beginning, once.
    """
    follow = resources.places.follow_host
    mounts = await asyncio.to_thread(follow)
    try:
        return await make(resources, birth)
    except (WaypointError, OSError) as error:
        if not isinstance(error, CriuFailed | LauncherDied) and await asyncio.to_thread(follow) == mounts:
            raise
        log.warning("start of a session on %s, first try: %s", birth.row.branch, error)
        await asyncio.to_thread(_clear, resources, birth.row)
        return await make(resources, birth)


async def _make_once(resources: Resources, birth: Birth) -> LiveSession:
    if birth.processes and birth.origin is not None:
        # In one thread from the begin to the end: each change of threads costs 0.3 ms of processor time.
        entry = await asyncio.to_thread(_bring_back, resources, birth, birth.origin)
        return revive.adopt(resources, entry)
    limits = await asyncio.to_thread(make_tree_and_group, resources, birth)
    place = functools.partial(_place_attached, resources, birth)
    with _offering_another_session(birth):
        folder = birth.origin.folder if birth.origin is not None and birth.shell else ""
        start_in = None if birth.must_enter else folder
        live = await fresh.launch(resources, birth.row, birth.size, limits, place, start_in)
    if birth.origin is not None and birth.shell:
        try:
            stays = await shell_back.restore_shell(resources, live, birth.origin, stay=birth.must_enter)
            live.not_back = [*birth.chosen.why_not_live, *stays]
            if birth.chosen.tier == "respawn":
                live.restarted = await start_again.start_again(resources, live, birth.origin)
        except BaseException:
            live.release()
            raise
    return live


def _bring_back(resources: Resources, birth: Birth, origin: Capture) -> RuntimeRecord:
    bounds = make_tree_and_group(resources, birth)
    place = functools.partial(_place_attached, resources, birth)
    with _offering_another_session(birth), offering_files(birth.row.branch, origin):
        return revive.bring_back(resources, birth.row, origin, birth.size, bounds, place)


@contextlib.contextmanager
def _offering_another_session(birth: Birth) -> Iterator[None]:
    try:
        yield
    except (OSError, Misplaced) as error:
        found = externals.misplaced(error) if isinstance(error, OSError) else error
        if found is None:
            raise
        if birth.origin is not None:
            way = f"waypoint shell NEW -d; waypoint restore {birth.origin.id[:12]} -b NEW --only files"
            found.next_step = f"have its files in another session: {way}"
        raise found from error


def _place_attached(resources: Resources, birth: Birth, overlays: Sequence[str]) -> None:
    """Place the attached layers in the session's files. `overlays`: the mount points of its overlays."""
    if birth.origin is None or not birth.attach_at:
        return
    setting = birth.row.setting
    where = Where(str(resources.pool.path(birth.row.tree)), overlays, resources.places.folder_of(setting.base))
    with resources.captures.hold(birth.origin) as held:
        for kind, path in birth.attach_at.items():
            held.place(kind, path, where, setting.user)


def _can_begin(birth: Birth, held: HeldCapture) -> bool:
    """Whether CRIU can be started before the mounts of the session are known: not for a session on the host's network
    (see CriuInto.no_host_network), or if a template may fork CRIU.
    """
    return birth.row.setting.net != "host" and held.processes.size_bytes < LEAST_BYTES


@stage(Stage.COPY_FILES)
def make_tree_and_group(resources: Resources, birth: Birth) -> Bounds:
    """Make the session's upper tree and cgroup. Returns their limits."""
    reach(Step.RESERVED)
    asked = birth.row.setting.limits
    limits, limiter = fill_in(asked), resources.places.limiter.of_session(asked)
    group = resources.places.cgroup_of(birth.row.session)
    limiter.make_group(group)
    if birth.origin is not None:
        with resources.captures.hold(birth.origin) as held:
            if birth.processes and _can_begin(birth, held):
                resources.criu.begin(group, str(held.criu_path))
            held.copy_files(birth.row.tree)
            nonce = held.processes.nonce if birth.processes else ""
            if birth.processes:
                held.prepare_processes(birth.row.tree)
        if birth.processes:
            row = birth.row
            revive.prepare_run_folder(resources.pool.path(row.tree), row.setting, nonce, row.branch)
    else:
        resources.pool.create(birth.row.tree)
    if not birth.processes:  # else CRIU and its helpers are in the group during the restore
        limiter.hold(group, limits)
    why_not = "" if limits.disk is None else resources.pool.limit(birth.row.tree, limits.disk)
    no_disk = [degradation("limit-not-enforced", "disk", why_not)] if why_not else []
    reach(Step.GROUNDED)
    return Bounds(limits, limiter, no_disk)


async def undo(resources: Resources, row: LiveRow) -> None:
    """Remove all of a session that was being started. Never raises, as the caller reports why the start failed: a
    failure here is retried (`PendingRecords`).
    """

    resources.published.release(row.session)

    def take_back() -> None:
        _clear(resources, row)  # before the record: this makes room on a full disk
        with resources.names.change("undo-start") as change:
            change.forget(row)

    resources.egress.forget(row.session)
    try:
        await asyncio.to_thread(take_back)
    except (WaypointError, OSError) as error:
        resources.pending_records.add(row.branch, "the start of a session was undone", take_back, error)


def _clear(resources: Resources, row: LiveRow) -> None:
    group = resources.places.cgroup_of(row.session)
    resources.criu.forget(group)
    cgroups.end(group)
    record.remove_folder(resources.places.sessions, row.session)
    resources.places.kit.forget(row.session)
    resources.pool.remove(row.tree)


def raise_in_words(error: BaseException, branch: str) -> NoReturn:
    """Raise `error`; an OSError becomes Failed."""
    known = in_words(error, branch)
    if known is error:
        raise error
    raise known from error


def in_words(error: BaseException, branch: str) -> BaseException:
    """Return `error`; for an OSError, a Failed with its words."""
    if not isinstance(error, OSError):
        return error
    said = f"{error.strerror} {os.fsdecode(error.filename or '')}".rstrip()
    next_step = NEXT_STEPS.get(error.errno or 0, "see 'waypoint doctor'")
    return Failed("start a session on", f"branch {branch}", said, next_step, code=of_machine(error.errno))
