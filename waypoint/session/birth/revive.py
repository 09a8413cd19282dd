"""Starting a session with the restored processes of a capture, on an upper tree that exists."""

import asyncio
import contextlib
import time
from pathlib import Path

from waypoint.capture.captures import Held
from waypoint.capture.layers.layer import Place
from waypoint.launch.criu import APART_SEEN
from waypoint.launch.criu_process import furnish
from waypoint.launch.ground import start_plan
from waypoint.launch.ground.base import BasePlan
from waypoint.launch.spec import StartSpec
from waypoint.linux.tasks import cgroups, procfs
from waypoint.model.errors import Failed
from waypoint.model.paths import COMMAND_FILE
from waypoint.model.records import Capture, LiveRow
from waypoint.processes.criu.externals import name_externals
from waypoint.session.live import record
from waypoint.session.live.record import RuntimeRecord
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.terminal.exec.record import carry_over


async def revive(resources: Resources, row: LiveRow, origin: Capture, size: tuple[int, int]) -> LiveSession:
    """Restore the processes of `origin` on the tree of `row`, which is a copy of the origin's files. `size`: rows and
    columns of the terminal. The caller has checked the origin (`Held.check`).

    Raises CannotCapture with CRIU's reason, Failed, OSError. After a failure the caller removes processes, folder and
    tree (`birth.undo`).
    """
    folder = record.make_folder(resources.places.sessions, row.session)
    with resources.captures.hold(origin) as held:
        layer = held.processes
        spec = _plan_spec(resources, row, held, size)
        externals = name_externals(spec.outside, APART_SEEN)
        place = Place(
            folder=folder,
            root=externals.root,
            externals=externals.restore,
            spawn=resources.criu.into(spec),
            on_notice=furnish() if row.setting.net != "host" else None,
        )
        pid = await asyncio.to_thread(held.bring_back, place)
    entry = RuntimeRecord(
        row=row,
        boot_id=procfs.boot_id(),
        init_pid=pid,
        init_start=procfs.start_ticks(pid),
        cgroup=spec.cgroup,
        overlays=layer.overlays,
        outside=spec.outside,
        proc_readonly=layer.proc_readonly,
        env={**layer.env, "WAYPOINT_BRANCH": row.branch},
        nonce=layer.nonce,
        left_out=start_plan.tell_gone(layer.overlays),
    )
    elapsed_s = time.clock_gettime(time.CLOCK_BOOTTIME) - origin.clock
    carry_over(str(folder / COMMAND_FILE), elapsed_s, lambda: cgroups.members(spec.cgroup))
    record.save(folder, entry)
    live = LiveSession.adopt(entry, folder, resources.launcher)
    with contextlib.suppress(OSError):  # no reason to fail: the shell then keeps the old name of its branch
        live.shell.desk.folder.write(start_plan.BRANCH_FILE, f"{row.branch}\n".encode())
    return live


def _plan_spec(resources: Resources, row: LiveRow, held: Held, size: tuple[int, int]) -> StartSpec:
    """The plan of the mounts that CRIU's images expect: the same mounts from outside, in the same order.

    Raises Failed if the base, or a folder that was bound into the session, does not exist any more.
    """
    layer = held.processes
    if not Path(row.setting.base).is_dir():
        raise _missing(held.capture, f"{row.setting.base}, over which it has an overlay, is missing")
    for bind in row.setting.binds:
        start_plan.check_bind(bind)
    tree = Path(resources.pool.path(row.tree))
    plan = BasePlan(layer.overlays, [])
    spec = start_plan.start_spec(row, plan, resources.places, tree, size=size, shm=held.memory)
    if spec.outside != layer.outside:
        raise _missing(held.capture, "the mounts from outside are not those with which it was made")
    return spec


def _missing(origin: Capture, said: str) -> Failed:
    return Failed("restore the processes of", origin.id[:12], said, "make it as it was")
