"""Starting sessions: one, or several from the same capture at once; all of them, or none."""

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

import msgspec

from waypoint.capture.steps import Step, reach
from waypoint.capture.torn import MAY_BE_TORN
from waypoint.launch import externals
from waypoint.launch.externals import Misplaced
from waypoint.launch.ground import start_plan
from waypoint.launch.ground.limits import Bounds, fill_in, shared_memory_bytes
from waypoint.launch.launcher_link import LauncherDied
from waypoint.linux.tasks import cgroups
from waypoint.model.errors import CannotCapture, Failed, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, LiveRow, Setting, Tier
from waypoint.processes.criu.causes import CriuAccident
from waypoint.session.birth import attached_at, fresh, revive, shell_back, start_again
from waypoint.session.birth.attached_at import Back, Owner
from waypoint.session.birth.rights import bounded, check_crowd, check_walls
from waypoint.session.live import record
from waypoint.session.live.holding import holding
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.upper.contract import NEXT_STEPS

log = logging.getLogger(__name__)

_MIB = 1 << 20
_FULL_BYTES = 64 * _MIB
"""A pool in which less is free gets a little more."""


class Birth(NamedTuple):
    """The plan of a new session.

    `origin`: the capture that the session goes on from; None: it begins with the plain base. `size`: rows and columns
    of its terminal. `processes`: whether the origin's processes are restored; if not, the session gets a new shell.
    `must_enter`: whether a new shell must start in the folder of the setting; if not, it may start in the user's home.
    `shell`: whether a new shell gets the state of the origin's shell. `most`: the tier to which what is brought back is
    bounded; None: it is not. `programs_later`: whoever has the session made calls `start_programs` when nobody has
    their ports any more. `attach_at`: as in Back.
    """

    row: LiveRow
    origin: Capture | None
    size: tuple[int, int]
    processes: bool
    must_enter: bool = False
    shell: bool = True
    most: Tier | None = None
    programs_later: bool = False
    attach_at: Mapping[str, str] = {}

    def bounded_to(self, tier: Tier | None) -> "Birth":
        """The plan to bring back no more than a capture of `tier` would keep; None: all that there is."""
        return self if tier is None else self._replace(processes=self.processes and tier == "live", most=tier)

    def as_asked(self, back: Back) -> "Birth":
        """The plan to bring back what `back` says."""
        return self.bounded_to(back.tier)._replace(attach_at=back.attach_at)

    @property
    def tier(self) -> Tier | None:
        """How much of the origin is brought back; None if there is none."""
        if self.origin is None:
            return None
        if self.processes:
            return "live"
        is_again = self.shell and self.most != "files" and self.origin.layers.programs is not None
        return "respawn" if is_again else "files"

    def left_out(self) -> list[str]:
        """In words, what of the origin is not brought back, as nobody wanted that; or why the tier that was asked for
        changes nothing.
        """
        if self.most in (None, "live"):
            return []
        if self.origin is None:
            return [f"--tier {self.most}: the branch begins anew, and there is nothing to bring back"]
        if self.origin.tier == self.most:
            return []
        if self.origin.tier == "files":
            return [f"--tier {self.most}: the capture keeps only files and the shell's state, which is all there is"]
        what = "processes" if self.origin.tier == "live" else "programs"
        is_listed = self.most != "respawn" or self.origin.layers.programs is not None
        listed = "" if is_listed else "; the capture, of an earlier version, has no list of its programs"
        return [f"without its {what}: --tier {self.most}{listed}"]


def plan_birth(
    resources: Resources,
    branch: str,
    origin: Capture | None,
    setting: Setting,
    size: tuple[int, int],
    *,
    processes: bool,
) -> Birth:
    """The plan of a session with `setting` for whoever asks. Raises NotAllowed if they may not have it."""
    setting, session = bounded(resources, setting), new_id()
    if origin is not None and processes:
        check_walls(resources, origin)
    row = LiveRow(branch=branch, session=session, tree=session, started=time.time(), setting=setting)
    return Birth(row, origin, size, processes)


def own_setting(resources: Resources, branch: str, origin: Capture) -> Setting:
    """The setting of a session that is brought back from `origin` on `branch`. What is published stays as it is on the
    branch: by the session that is replaced, else as it was on this branch; a copy on another one publishes nothing.
    """
    live = next((row.setting.publish for row in resources.names.live() if row.branch == branch), None)
    own = origin.setting.publish if origin.branch == branch else []
    return msgspec.structs.replace(origin.setting, publish=own if live is None else live)


def size_of(origin: Capture) -> tuple[int, int]:
    """Rows and columns of the terminal in a capture; 24 and 80 if the capture has no terminal."""
    terminal = origin.layers.terminal
    return (terminal.rows, terminal.cols) if terminal is not None else (24, 80)


async def bring_up_all(resources: Resources, births: Sequence[Birth], verb: str) -> list[LiveSession]:
    """Start the sessions of all `births` side by side. `verb`: the verb of the entry in the operation log.

    Raises StateConflict if a branch is live or its name is taken, Failed with the words of the system call that failed,
    CannotCapture if CRIU cannot restore the processes. After a failure nothing of any session is left; the left-overs
    of a crash are removed when the next daemon starts.
    """
    origins = {birth.origin.id: birth.origin for birth in births if birth.origin is not None}
    async with holding(resources.captures, *origins.values()):  # until a name stands for them
        return await _bring_up_all(resources, births, verb)


async def _bring_up_all(resources: Resources, births: Sequence[Birth], verb: str) -> list[LiveSession]:
    await reserve(resources, births)
    begun = [asyncio.ensure_future(make_session(resources, birth)) for birth in births]
    try:
        found = await asyncio.gather(*begun)
        await asyncio.to_thread(reach, Step.RESTORED)
        with resources.names.change(verb) as change:
            for birth in births:
                change.ready(birth.row, birth.origin.id if birth.origin else None)
    except BaseException as error:
        await asyncio.gather(*begun, return_exceptions=True)
        for task in begun:
            if not task.cancelled() and task.exception() is None:
                task.result().release()
        for birth in births:
            await undo(resources, birth.row)
        raise_in_words(error, births[0].row.branch)
    await asyncio.to_thread(reach, Step.CONFIRMED)
    return list(found)


async def reserve(resources: Resources, births: Sequence[Birth], *, instead_of: LiveSession | None = None) -> None:
    """Record that the sessions of `births` are being started. Births that restore processes all have the same origin.

    `instead_of`: the live session of the branch, which the new one is to replace. Raises StateConflict, and as
    `Held.check` if it can be known that the processes cannot be restored; then nothing is recorded.
    """
    origin = births[0].origin
    await asyncio.to_thread(resources.pool.check_writable)
    if births[0].processes and origin is not None:
        leaving = instead_of.processes() if instead_of is not None else []
        with naming_a_way(births[0].row.branch, origin, processes=True):
            await asyncio.to_thread(_check, resources, births, origin, leaving)
    if instead_of is None:
        check_crowd(resources, len(births))
    await asyncio.to_thread(resources.pool.grow_if_needed)
    with resources.names.change("reserve") as change:
        for birth in births:
            change.reserve(birth.row, beside=instead_of is not None)


@contextlib.contextmanager
def naming_a_way(branch: str, origin: Capture, *, processes: bool) -> Iterator[None]:
    """If `origin` cannot be brought back in the `with` block, the error also says how its files can be: no capture may
    be without a way back. `processes`: its processes are tried; without them its shell may come up.
    """
    try:
        yield
    except WaypointError as error:
        back = f"waypoint restore {origin.id[:12]} -b {branch}"
        way = f"for its files alone: {back} --only files"
        if processes:
            way += f"; with its shell's state, too: {back} --tier files; and its programs again: {back} --tier respawn"
        error.next_step = f"{error.next_step}; {way}" if error.next_step else way
        raise


def _check(resources: Resources, births: Sequence[Birth], origin: Capture, leaving: Sequence[int]) -> None:
    """As `Held.check`, for the settings of `births`. Reads the origin's files, and removes them if they are dropped
    meanwhile: not on the loop.
    """
    with resources.captures.hold(origin) as held:
        held.check(len(births), leaving)
        needed, limits = held.memory_bytes, births[0].row.setting.limits
        most = shared_memory_bytes(limits)
        if needed > most:
            said = f"its files in /dev/shm take {needed >> 20} MiB, half of the session's memory is {most >> 20} MiB"
            memory = 2 * (needed + held.processes.size_bytes) + _MIB >> 20
            more = f"give it more: waypoint shell NEW --from {origin.id[:12]} --memory {memory}M"
            raise CannotCapture("restore the processes of", origin.id[:12], said, more)


async def make_session(resources: Resources, birth: Birth) -> LiveSession:
    """Make one session: its files, its cgroup, its mounts, its processes, its terminal. The birth is reserved.

    After an accident of CRIU's or the launcher's, if the machine's mounts have changed meanwhile, or if the pool had no
    room, which then gets a little more, the session is made a second time, from the beginning. Raises OSError,
    WaypointError; the caller undoes the birth after a failure (`undo`).
    """
    follow = resources.places.follow_host
    mounts = await asyncio.to_thread(follow)
    try:
        return await _make_once(resources, birth)
    except (WaypointError, OSError) as error:
        is_full = _is_for_want_of_room(error)
        is_again = is_full or isinstance(error, CriuAccident | LauncherDied)
        if not is_again and await asyncio.to_thread(follow) == mounts:
            raise
        log.warning("start of a session on %s, first try: %s", birth.row.branch, error)
        await asyncio.to_thread(_clear, resources, birth.row)
        if is_full:
            with contextlib.suppress(WaypointError, OSError):  # the second try tells
                await asyncio.to_thread(_make_room, resources)
        return await _make_once(resources, birth)


def _make_room(resources: Resources) -> None:
    """In a pool that is full: the kernel says the same of watches, groups, namespaces and memory."""
    if resources.pool.free_bytes() < _FULL_BYTES:
        resources.pool.in_room(None)


def _is_for_want_of_room(error: WaypointError | OSError) -> bool:
    """A full btrfs refuses now and then what it has room for a moment later, also to who only mounts what lies on it,
    such as CRIU, whose words are all that is there of it.
    """
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    return os.strerror(errno.ENOSPC) in error.said


async def _make_once(resources: Resources, birth: Birth) -> LiveSession:
    limits = await asyncio.to_thread(_make_tree_and_group, resources, birth)
    with _leading_to_files(birth):
        if birth.processes and birth.origin is not None:
            with naming_a_way(birth.row.branch, birth.origin, processes=birth.processes):
                live = await revive.revive(resources, birth.row, birth.origin, birth.size, limits, birth.attach_at)
            if not birth.programs_later:
                with _released_after_failure(live):
                    await start_programs(resources, birth, live)
            return live
        origin = birth.origin
        folder = origin.folder if origin is not None and birth.shell else ""
        opening = fresh.Opening(folder, birth.must_enter, origin.id if origin is not None else "", birth.tier)
        live = await fresh.launch(resources, birth.row, birth.size, limits, opening)
    live.not_back = [*birth.left_out(), *(torn(resources, birth.origin) if birth.origin is not None else [])]
    if birth.origin is not None and birth.attach_at:
        with _released_after_failure(live):
            owner = Owner(birth.row.setting.user, live.record.ids)
            async with holding(resources.captures, birth.origin) as (held,):
                await asyncio.to_thread(attached_at.put_there, held, birth.attach_at, live.record.init_pid, owner)
    if birth.origin is not None and birth.shell:
        with _released_after_failure(live):
            lacks = await shell_back.bring_back(resources, live, birth.origin, stay=birth.must_enter)
            live.not_back = [*live.not_back, *lacks]
            if not birth.programs_later:
                await start_programs(resources, birth, live)
    return live


def torn(resources: Resources, origin: Capture) -> list[str]:
    """What to tell of what is brought back without processes; with them, the capture tells it (`Held.bring_back`)."""
    return [MAY_BE_TORN] if resources.captures.torn.may_be(origin.id) else []


async def start_programs(resources: Resources, birth: Birth, live: LiveSession) -> None:
    """Start the programs of the origin again that are not back with its processes, as far as they are wanted."""
    origin = birth.origin
    if origin is None or origin.layers.programs is None:
        return
    if origin.layers.programs.ended if birth.processes else birth.shell and birth.most != "files":
        live.again = await start_again.start_again(resources, live, origin)


@contextlib.contextmanager
def _released_after_failure(live: LiveSession) -> Iterator[None]:
    try:
        yield
    except BaseException:
        live.release()
        raise


@contextlib.contextmanager
def _leading_to_files(birth: Birth) -> Iterator[None]:
    """If a mount of the session has no place in its files in the `with` block, the error says how these can be had."""
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


def _make_tree_and_group(resources: Resources, birth: Birth) -> Bounds:
    """Make the session's upper tree, with the origin's files in it, and the session's cgroup. Returns the limits that
    these have.
    """
    reach(Step.RESERVED)
    if birth.origin is not None:
        with resources.captures.hold(birth.origin) as held:
            held.copy_files(birth.row.tree)
            nonce = held.processes.nonce if birth.processes else ""
        if birth.processes:
            row = birth.row
            named = start_plan.branch_text(row.branch, birth.origin.id)
            revive.prepare_run_folder(resources.pool.path(row.tree), row.setting, nonce, named)
    else:
        resources.pool.create(birth.row.tree)
    asked = birth.row.setting.limits
    limits, limiter = fill_in(asked), resources.places.limiter.of_session(asked)
    group = resources.places.cgroup_of(birth.row.session)
    limiter.make_group(group)
    if not birth.processes:  # else CRIU is in the group until it has brought them back, with some processes of its own
        limiter.hold(group, limits)
    no_disk = [] if limits.disk is None else _limit_tree(resources, birth.row.tree, limits.disk)
    reach(Step.GROUNDED)
    return Bounds(limits, limiter, no_disk)


def _limit_tree(resources: Resources, tree: str, most_bytes: int) -> list[str]:
    """Limit what may be written to a session's tree. Returns what is to be told if that cannot be."""
    why_not = resources.pool.limit(tree, most_bytes)
    return [f"disk: not held, {why_not}"] if why_not else []


async def undo(resources: Resources, row: LiveRow) -> None:
    """Remove all of a session that was being started. Raises nothing, as the caller reports the error that made the
    start fail: what fails here is tried again, and nothing begins on the branch until then (`Overdue`).
    """

    def take_back() -> None:
        _clear(resources, row)  # before the record: a full disk gets room for that
        with resources.names.change("undo-start") as change:
            change.forget(row)

    try:
        await asyncio.to_thread(take_back)
    except (WaypointError, OSError) as error:
        resources.overdue.add(row.branch, "the start of a session was taken back", take_back, error)


def _clear(resources: Resources, row: LiveRow) -> None:
    """Remove all that was made of a session, which stays reserved. Raises OSError, WaypointError."""
    _end(resources, row)
    resources.pool.remove(row.tree)


def _end(resources: Resources, row: LiveRow) -> None:
    """End the processes of a session that was being started, and remove its cgroup and its runtime folder."""
    cgroups.end(resources.places.cgroup_of(row.session))
    record.remove_folder(resources.places.sessions, row.session)


def raise_in_words(error: BaseException, branch: str) -> NoReturn:
    """Raise `error`; if it is an OSError, raise Failed with its words instead."""
    if not isinstance(error, OSError):
        raise error
    name = "" if isinstance(error.filename, int) else os.fsdecode(error.filename or "")
    said = f"{error.strerror} {name}".rstrip()
    next_step = NEXT_STEPS.get(error.errno or 0, "see 'waypoint doctor'")
    raise Failed("start a session on", f"branch {branch}", said, next_step) from error
