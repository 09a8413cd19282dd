"""Starting a session with a new shell, on an upper tree that exists."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from waypoint.launch.ground import start_plan
from waypoint.launch.ground.limits import Bounds
from waypoint.launch.spec import StartSpec
from waypoint.linux.tasks import procfs
from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import Degradation, degradation, text_of
from waypoint.model.errors import UsageProblem
from waypoint.model.ids import new_id
from waypoint.model.paths import is_below
from waypoint.model.records import LiveRow
from waypoint.model.stages import Stage
from waypoint.session.birth.revive import Place
from waypoint.session.live import record
from waypoint.session.live.record import RuntimeRecord
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import Descriptors, LiveSession


class _Lacking(NamedTuple):
    left_out: list[Degradation]
    why_host_ids: str
    why_no_seccomp: str


async def launch(
    resources: Resources,
    row: LiveRow,
    size: tuple[int, int],
    bounds: Bounds,
    place: Place,
    folder: str | None,
) -> LiveSession:
    """Start the session's program on the tree of `row`. `folder`: where it starts, if it can; "": the folder of its
    setting; None: the folder of its setting, or the start fails. After a failure the caller calls `birth.undo`.
    """
    places = resources.places
    nonce = new_id()
    spec, lacking = await asyncio.to_thread(_prepare, resources, row, size, nonce)
    await asyncio.to_thread(place, [overlay.target for overlay in spec.overlays])
    left_out = lacking.left_out
    if folder is None:
        spec = msgspec.structs.replace(spec, cwd=spec.cwd[:1])
    elif folder:
        spec = msgspec.structs.replace(spec, cwd=[folder, *spec.cwd])
    try:
        with stage(Stage.START, row.branch):
            started = await resources.launcher.carry_out(spec)
    except OSError as error:
        if folder is None and error.filename == row.setting.cwd:
            raise _no_entry(row.setting.cwd, left_out, error) from error
        raise
    if started.entered:
        left_out.append(degradation("folder-not-entered", spec.cwd[0], spec.cwd[started.entered]))
    entry = _record(row, spec, started.pid, nonce, lacking)
    entry = msgspec.structs.replace(entry, limits=bounds.limits, unlimited=bounds.unlimited(spec.ids))
    with contextlib.ExitStack() as undo:
        for fd in started.handles:
            undo.callback(os.close, fd)
        runtime = record.make_folder(places.sessions, row.session)
        record.save(runtime, entry)
        undo.pop_all()
    return LiveSession(entry, runtime, resources.launcher, Descriptors(*started.handles))


def _record(row: LiveRow, spec: StartSpec, init_pid: int, nonce: str, lacking: _Lacking) -> RuntimeRecord:
    return RuntimeRecord(
        row=row,
        boot_id=procfs.boot_id(),
        init_pid=init_pid,
        init_start=procfs.start_ticks(init_pid),
        cgroup=spec.cgroup,
        overlays=[overlay.target for overlay in spec.overlays],
        outside=spec.outside,
        proc_readonly=spec.proc_readonly,
        masked=spec.masked,
        env=spec.env,
        nonce=nonce,
        left_out=lacking.left_out,
        ids=spec.ids,
        why_host_ids=lacking.why_host_ids,
        seccomp=spec.seccomp,
        why_no_seccomp=lacking.why_no_seccomp,
    )


def _prepare(resources: Resources, row: LiveRow, size: tuple[int, int], nonce: str) -> tuple[StartSpec, _Lacking]:
    places, tree = resources.places, Path(resources.pool.path(row.tree))
    plan = start_plan.plan_overlays(row.setting.base, places).give_way(str(tree))
    start_plan.prepare_tree(tree, plan, row.setting, nonce, row.branch)
    ids, why_host_ids = start_plan.choose_ids(row.setting, plan, places, tree)
    seccomp, why_no_seccomp = start_plan.choose_seccomp(row.setting, places)
    spec = start_plan.start_spec(row, plan._replace(ids=ids), places, tree, size)
    spec = msgspec.structs.replace(spec, seccomp=seccomp)
    return spec, _Lacking(plan.left_out, why_host_ids, why_no_seccomp)


def _no_entry(cwd: str, left_out: list[Degradation], error: OSError) -> UsageProblem:
    missing = [one for one in left_out if is_below(cwd, one.subject)]
    said = f"{error.strerror}; not in the session: {text_of(missing[-1])}" if missing else error.strerror or str(error)
    return UsageProblem("start a session in", cwd, said, "name a folder that its user can enter, or leave out --cwd")
