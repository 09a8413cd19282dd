"""A session with a new shell, on files that are there."""

import asyncio
import contextlib
import os
from pathlib import Path

from waypoint.linux import procfs
from waypoint.model.ids import new_id
from waypoint.model.records import LiveRow
from waypoint.session import record
from waypoint.session.ground import start_plan
from waypoint.session.home_ground import HomeGround
from waypoint.session.live import Hold, LiveSession
from waypoint.session.record import RuntimeRecord


async def launch(ground: HomeGround, row: LiveRow, size: tuple[int, int]) -> LiveSession:
    """Start the session's program on the tree of `row`. Raises OSError, WaypointError; the caller undoes the rest."""
    places = ground.places
    nonce = new_id()
    plan = start_plan.plan_layers(row.setting, places)
    left_out = list(plan.left_out)
    tree = Path(ground.pool.path(row.tree))

    def prepare() -> None:
        left_out.extend(plan.tell_lost(os.listdir(tree)))
        start_plan.prepare_tree(tree, plan, row.setting, nonce, row.branch)

    await asyncio.to_thread(prepare)
    spec = start_plan.start_spec(row, plan, places, tree, size=size)
    started = await ground.launcher.carry_out(spec)
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
    return LiveSession(entry, folder, ground.launcher, Hold(*started.handles))
