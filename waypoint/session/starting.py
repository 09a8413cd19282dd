"""Starting a session: from a setting to a live session, or to nothing."""

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from waypoint.capture import sealing
from waypoint.linux import cgroups, procfs
from waypoint.model.errors import Failed, UsageProblem, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, LiveRow, Setting
from waypoint.model.requests import StartRequest
from waypoint.session import record
from waypoint.session.ending import end_processes
from waypoint.session.ground import start_plan
from waypoint.session.ground.places import Places
from waypoint.session.launch.link import Launcher
from waypoint.session.live import Hold, LiveSession
from waypoint.session.record import RuntimeRecord
from waypoint.session.users import find_user, user_name
from waypoint.store.names import Names
from waypoint.upper.contract import Pool


class Ground(NamedTuple):
    """What sessions of a home stand on."""

    places: Places
    names: Names
    pool: Pool
    launcher: Launcher


async def start(
    ground: Ground, branch: str, origin: Capture | None, setting: Setting, size: tuple[int, int]
) -> LiveSession:
    """Start a session on `branch`, with the files of `origin` (None: those of the base). `size`: rows and columns.

    Raises Failed with the failing call's words, StateConflict if the branch is live or its name is excluded. After a
    failure nothing of it is left; what a crash leaves is swept when the next daemon starts.
    """
    session = new_id()
    row = LiveRow(
        branch=branch,
        session=session,
        tree=session,
        started=time.time(),
        parent=origin.id if origin else None,
        setting=setting,
    )
    ground.names.begin(row)
    try:
        return await _launch(ground, row, origin, size)
    except BaseException as error:
        await _undo(ground, row)
        if isinstance(error, OSError):
            where = f" {error.filename}" if error.filename else ""
            raise Failed(
                "start a session on", f"branch {branch}", f"{error.strerror}{where}", "see 'waypoint doctor'"
            ) from error
        raise


async def _launch(ground: Ground, row: LiveRow, origin: Capture | None, size: tuple[int, int]) -> LiveSession:
    places = ground.places
    nonce = new_id()
    group = places.cgroup_of(row.session)
    plan = start_plan.plan_layers(row.setting, places)
    left_out = list(plan.left_out)

    def prepare() -> Path:
        ground.pool.grow_if_needed()
        tree = Path(ground.pool.snapshot(origin.tree, row.tree) if origin else ground.pool.create(row.tree))
        left_out.extend(plan.tell_lost(os.listdir(tree)))
        start_plan.prepare_tree(tree, plan, row.setting, nonce)
        cgroups.create(group)
        return tree

    tree = await asyncio.to_thread(prepare)
    spec = start_plan.start_spec(row, plan, places, tree, group=group, size=size)
    started = await ground.launcher.carry_out(spec)
    entry = RuntimeRecord(
        row=row,
        boot_id=procfs.boot_id(),
        init_pid=started.pid,
        init_start=_start_ticks(started.pid),
        cgroup=group,
        overlays=spec.overlays,
        binds=spec.binds,
        proc_readonly=spec.proc_readonly,
        env=spec.env,
        nonce=nonce,
        left_out=left_out,
    )
    with contextlib.ExitStack() as undo:
        for fd in started.handles:
            undo.callback(os.close, fd)
        folder = record.make_folder(places.sessions, row.session)
        undo.pop_all()
    live = LiveSession(entry, folder, ground.launcher, Hold(*started.handles))
    record.save(folder, entry)
    return live


def _start_ticks(pid: int) -> int:
    """0 if it has ended by now."""
    with contextlib.suppress(ProcessLookupError):
        return procfs.stat(pid).start_ticks
    return 0


async def _undo(ground: Ground, row: LiveRow) -> None:
    def undo() -> None:
        end_processes(ground.places.cgroup_of(row.session))
        record.remove_folder(ground.places.sessions, row.session)
        sealing.discard(ground.pool, ground.names, row)

    # The first error is the one to tell; what is left is swept at the next start.
    with contextlib.suppress(WaypointError, OSError):
        await asyncio.to_thread(undo)


def plan_setting(request: StartRequest, uid: int, origin: Setting | None) -> Setting:
    """What the session will be: what was asked for, else what its origin was, else the defaults."""
    base = os.path.realpath(request.base) if request.base is not None else (origin.base if origin else "/")
    if not os.path.isdir(base) or not (request.base or base).startswith("/"):
        raise UsageProblem("start a session on", f"base {request.base!r}", "it is not a directory", "give --base DIR")
    if origin and request.base and base != origin.base:
        raise UsageProblem(
            "go on with another base",
            base,
            f"the branch was made on {origin.base}",
            "start a new branch for another base",
        )
    user = (
        find_user(base, request.user) if request.user else (origin.user if origin else find_user(base, user_name(uid)))
    )
    binds = [start_plan.parse_bind(text) for text in request.binds] or (origin.binds if origin else [])
    for bind in binds:
        start_plan.check_bind(bind)
    return Setting(
        base=base,
        binds=binds,
        net=request.net or (origin.net if origin else "private"),
        user=user,
        cwd=request.cwd or (origin.cwd if origin else user.home),
        env=start_plan.taken_env(request.env),
        command=request.command,
    )
