"""Sessions come to life: one, or several of one origin at once; all of them, or none."""

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from waypoint.capture.steps import Step, reach
from waypoint.linux import cgroups
from waypoint.model.errors import Failed, UnknownName, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, LiveRow, Setting
from waypoint.session import launching, record, restoring
from waypoint.session.ending import end_processes
from waypoint.session.home_ground import HomeGround
from waypoint.session.live import LiveSession
from waypoint.session.restoring import damaged


class Birth(NamedTuple):
    """A session to be. `origin`: the capture that it goes on from; None: the base. `size`: rows and columns.

    `processes`: bring the origin's processes back; else its shell is a new one.
    """

    row: LiveRow
    origin: Capture | None
    size: tuple[int, int]
    processes: bool


def plan_birth(
    branch: str, origin: Capture | None, setting: Setting, size: tuple[int, int], *, processes: bool
) -> Birth:
    session = new_id()
    row = LiveRow(branch=branch, session=session, tree=session, started=time.time(), setting=setting)
    return Birth(row, origin, size, processes)


async def start(ground: HomeGround, births: Sequence[Birth], verb: str) -> list[LiveSession]:
    """Start them side by side. `verb`: for the operation log.

    Raises StateConflict if a branch is live or its name is taken, Failed with the failing call's words, CannotCapture
    if CRIU cannot bring the processes back. After a failure nothing of any is left; what a crash leaves is swept when
    the next daemon starts.
    """
    reserve(ground, births)
    begun = [asyncio.ensure_future(bring_up(ground, birth)) for birth in births]
    try:
        found = await asyncio.gather(*begun)
        await asyncio.to_thread(reach, Step.RESTORED)
        with ground.names.change(verb) as change:
            for birth in births:
                change.ready(birth.row, birth.origin.id if birth.origin else None)
    except BaseException as error:
        await asyncio.gather(*begun, return_exceptions=True)
        for task in begun:
            if not task.cancelled() and task.exception() is None:
                task.result().release()
        for birth in births:
            await undo(ground, birth.row)
        raise_in_words(error, births[0].row.branch)
    await asyncio.to_thread(reach, Step.CONFIRMED)
    return list(found)


def reserve(ground: HomeGround, births: Sequence[Birth], *, beside: bool = False) -> None:
    """Note on record that they are being started: of one origin, if they bring processes back.

    Raises StateConflict, and as `restoring.check` if it is known that they could not be, with nothing noted.
    """
    origin = births[0].origin
    if births[0].processes and origin is not None:
        restoring.check(ground, origin, len(births))
    with ground.names.change("reserve") as change:
        for birth in births:
            change.reserve(birth.row, beside=beside)


async def bring_up(ground: HomeGround, birth: Birth) -> LiveSession:
    """Files, mounts, processes, terminal. The caller undoes what a failure leaves."""
    await asyncio.to_thread(_make_ground, ground, birth)
    if birth.processes and birth.origin is not None:
        return await restoring.restore(ground, birth.row, birth.origin)
    return await launching.launch(ground, birth.row, birth.size)


def _make_ground(ground: HomeGround, birth: Birth) -> None:
    """The upper tree, with what the origin has in it, and the cgroup."""
    reach(Step.RESERVED)
    ground.pool.grow_if_needed()
    if birth.origin is not None:
        try:
            ground.pool.snapshot(birth.origin.layers.files.tree, birth.row.tree)
        except UnknownName as error:
            raise damaged(birth.origin, "its files are not in the pool any more") from error
    else:
        ground.pool.create(birth.row.tree)
    cgroups.create(ground.places.cgroup_of(birth.row.session))
    reach(Step.GROUNDED)


async def undo(ground: HomeGround, row: LiveRow) -> None:
    """Leave nothing of a session that was being started."""

    def take_back() -> None:
        end_processes(ground.places.cgroup_of(row.session))
        record.remove_folder(ground.places.sessions, row.session)
        with ground.names.change("undo-start") as change:
            change.forget(row)
        ground.pool.remove(row.tree)

    # The first error is the one to tell; what is left is swept at the next start.
    with contextlib.suppress(WaypointError, OSError):
        await asyncio.to_thread(take_back)


def raise_in_words(error: BaseException, branch: str) -> NoReturn:
    """Raise `error`; a failing system call as the error that says so."""
    if not isinstance(error, OSError):
        raise error
    said = f"{error.strerror} {os.fsdecode(error.filename or '')}".rstrip()
    raise Failed("start a session on", f"branch {branch}", said, "see 'waypoint doctor'") from error
