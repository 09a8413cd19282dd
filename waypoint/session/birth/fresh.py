"""Starting a session with a new shell, on an upper tree that exists."""

import asyncio
import contextlib
import os
from pathlib import Path

import msgspec

from waypoint.launch.ground import start_plan
from waypoint.launch.ground.base import is_below
from waypoint.linux.tasks import procfs
from waypoint.model.errors import UsageProblem
from waypoint.model.ids import new_id
from waypoint.model.records import LiveRow
from waypoint.session.live import record
from waypoint.session.live.record import RuntimeRecord
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import Hold, LiveSession


async def launch(resources: Resources, row: LiveRow, size: tuple[int, int], *, must_enter: bool) -> LiveSession:
    """Start the session's program on the tree of `row`. `size`: rows and columns of its terminal. `must_enter`: whether
    it must start in the folder of its setting.

    Raises UsageProblem if it must and cannot start there, OSError, WaypointError. After a failure the caller removes
    processes, folder and tree (`birth.undo`).
    """
    places = resources.places
    nonce = new_id()
    plan = start_plan.plan_overlays(row.setting.base, places)
    left_out = list(plan.left_out)
    tree = Path(resources.pool.path(row.tree))

    def prepare() -> None:
        left_out.extend(plan.tell_lost(os.listdir(tree)))
        start_plan.prepare_tree(tree, plan, row.setting, nonce, row.branch)

    await asyncio.to_thread(prepare)
    spec = start_plan.start_spec(row, plan, places, tree, size=size)
    if must_enter:
        spec = msgspec.structs.replace(spec, cwd=spec.cwd[:1])
    try:
        started = await resources.launcher.carry_out(spec)
    except OSError as error:
        if must_enter and error.filename == row.setting.cwd:
            raise _no_entry(row.setting.cwd, left_out, error) from error
        raise
    entry = RuntimeRecord(
        row=row,
        boot_id=procfs.boot_id(),
        init_pid=started.pid,
        init_start=procfs.start_ticks(started.pid),
        cgroup=spec.cgroup,
        overlays=[overlay.target for overlay in spec.overlays],
        outside=spec.outside,
        proc_readonly=spec.proc_readonly,
        env=spec.env,
        nonce=nonce,
        left_out=left_out,
    )
    with contextlib.ExitStack() as undo:
        for fd in started.handles:
            undo.callback(os.close, fd)
        folder = record.make_folder(places.sessions, row.session)
        record.save(folder, entry)
        undo.pop_all()
    return LiveSession(entry, folder, resources.launcher, Hold(*started.handles))


def _no_entry(cwd: str, left_out: list[str], error: OSError) -> UsageProblem:
    """The error for a folder that a session must start in and cannot. `left_out`: what the session does not have of the
    machine's mounts.
    """
    missing = [line for line in left_out if is_below(cwd, line.partition(" (")[0])]
    said = f"{error.strerror}; not in the session: {missing[-1]}" if missing else error.strerror or str(error)
    return UsageProblem("start a session in", cwd, said, "name a folder that its user can enter, or leave out --cwd")
