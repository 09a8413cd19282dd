"""Starting a session with the restored processes of a capture, on an upper tree that exists."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from waypoint.capture.captures import HeldCapture
from waypoint.capture.layers.layer import RestoreTarget
from waypoint.launch.criu import APART_SEEN
from waypoint.launch.criu_process import furnish
from waypoint.launch.externals import SYS
from waypoint.launch.ground import start_plan
from waypoint.launch.ground.base import BasePlan
from waypoint.launch.ground.limits import Bounds
from waypoint.launch.ground.places import SharedPlaces
from waypoint.launch.spec import StartSpec
from waypoint.linux.calls import hard_limits
from waypoint.linux.storage import beneath
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import cgroups, procfs
from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.errors import Failed, WaypointError
from waypoint.model.paths import COMMAND_FILE, RUN_FOLDER
from waypoint.model.records import Capture, LiveRow, ProcessesLayer, Setting
from waypoint.model.stages import Stage
from waypoint.processes.criu.options import name_externals
from waypoint.session.live import record
from waypoint.session.live.record import RuntimeRecord
from waypoint.session.live.resources import Resources
from waypoint.session.live.session import LiveSession
from waypoint.terminal.exec.command_record import carry_over
from waypoint.terminal.inside.inbox import mark_captured
from waypoint.upper import layout

Place = Callable[[Sequence[str]], None]
"""Places attached layers in a session's files, given the mount points of its overlays."""

_HAD_NONE = "its processes had none when they were captured"


def bring_back(
    resources: Resources, row: LiveRow, origin: Capture, size: tuple[int, int], bounds: Bounds, place: Place
) -> RuntimeRecord:
    """Restore the processes of `origin` on the tree of `row`, a copy of the origin's files, and save the record of the
    session, which is returned for `adopt`. Blocks. The caller has checked the origin (`HeldCapture.check`), and calls
    `birth.undo` after a failure.
    """
    entry = _restored(resources, row, origin, size, bounds, place)
    _save(resources, entry, origin)
    return entry


def stand_by(
    resources: Resources, row: LiveRow, origin: Capture, size: tuple[int, int], bounds: Bounds
) -> RuntimeRecord:
    """Restore like `bring_back`, but leave the processes frozen, without a network. `row`: of a standby. Return the
    record of the session, from which `wake` makes a live session. Blocks.
    """
    return _restored(resources, row, origin, size, bounds, lambda _: None)


def wake(resources: Resources, entry: RuntimeRecord, origin: Capture) -> LiveSession:
    """Adopt the session that `stand_by` has restored, and let its processes run. `entry`: its record, with the row of
    the live session. Raises OSError. Call it in the event loop.
    """
    entry = msgspec.structs.replace(entry, env={**entry.env, "WAYPOINT_BRANCH": entry.row.branch})
    _save(resources, entry, origin)
    live = adopt(resources, entry)
    cgroups.thaw(entry.cgroup)
    return live


def _restored(
    resources: Resources, row: LiveRow, origin: Capture, size: tuple[int, int], bounds: Bounds, place: Place
) -> RuntimeRecord:
    folder = record.make_folder(resources.places.sessions, row.session)
    with resources.captures.hold(origin) as held:
        layer = held.processes
        spec = _plan_spec(resources, row, held, size)
        place(layer.overlays)
        target = _target(resources, row, layer, spec, folder, to_run=True)
        pid = _restore(resources, held, target, spec)
    bounds.limiter.hold(spec.cgroup, bounds.limits)
    return RuntimeRecord(
        row=row,
        boot_id=procfs.boot_id(),
        init_pid=pid,
        init_start=procfs.start_ticks(pid),
        cgroup=spec.cgroup,
        left_out=start_plan.gone_mounts(layer.overlays),
        why_host_ids="" if layer.ids.is_shifted else "its processes had them when they were captured",
        why_no_seccomp=_HAD_NONE if layer.seccomp == "none" else "",
        limits=bounds.limits,
        unlimited=bounds.unlimited(layer.ids),
        origin=origin.id,
        lowered=target.lost + _lowered(layer.hard_limits, hard_limits.highest(cgroups.members(spec.cgroup))),
        **{**layer.fixed_fields(), "env": {**layer.env, "WAYPOINT_BRANCH": row.branch}},
    )


def _save(resources: Resources, entry: RuntimeRecord, origin: Capture) -> None:
    folder = resources.places.sessions / entry.row.session
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - origin.clock
    carry_over(str(folder / COMMAND_FILE), age_s, lambda: cgroups.members(entry.cgroup))
    record.save(folder, entry)


def adopt(resources: Resources, entry: RuntimeRecord) -> LiveSession:
    """Open the session that `bring_back` has restored. Call it in the event loop."""
    live = LiveSession.adopt(entry, resources.places.sessions / entry.row.session, resources.launcher)
    with contextlib.suppress(OSError):  # then the shell shows the old name of its branch
        live.shell.desk.folder.write(start_plan.BRANCH_FILE, f"{entry.row.branch}\n".encode())
    return live


def check_outside(places: SharedPlaces, setting: Setting, origin: Capture) -> None:
    """Raise Failed if the machine lacks a folder over which the restored processes have an overlay or a bind."""
    if not Path(places.folder_of(setting.base)).is_dir():
        raise _missing(origin, f"{setting.base_text}, over which it has an overlay, is missing")
    for bind in setting.binds:
        if not Path(bind.source).exists():
            raise _missing(origin, f"{bind.source}, which was bound into it, is missing")


def restore_frozen(resources: Resources, row: LiveRow, held: HeldCapture, size: tuple[int, int]) -> list[int]:
    """Restore the processes of `held` on the tree of `row`, so that they never run, in a network that leads nowhere.
    Return their pids on the host. Blocks. The caller calls `birth.undo` in any case.
    """
    folder = record.make_folder(resources.places.sessions, row.session)
    spec = _plan_spec(resources, row, held, size)
    target = _target(resources, row, held.processes, spec, folder, to_run=False)
    held.restore(target)
    return cgroups.members(spec.cgroup)


@stage(Stage.RESTORE)
def _restore(resources: Resources, held: HeldCapture, target: RestoreTarget, spec: StartSpec) -> int:
    """Restore the processes, from a template if the capture is large. Return the host's pid of their pid 1."""
    with resources.templates.opened(held) as template_fd:
        if template_fd is not None:
            target.spawn = resources.criu.into(spec, held.processes.hard_limits, template_fd=template_fd)
        try:
            return held.restore(target)
        except (WaypointError, OSError):
            if template_fd is not None:
                resources.templates.avoid(held.capture)
            raise


def _target(
    resources: Resources, row: LiveRow, layer: ProcessesLayer, spec: StartSpec, folder: Path, *, to_run: bool
) -> RestoreTarget:
    externals, stands_by = name_externals(spec.outside, APART_SEEN), row.stands_for is not None

    def prepare_network(namespace: int) -> None:
        if to_run and not stands_by and row.setting.net == "private":
            resources.egress.prepare(row.session, namespace, is_restricted=bool(row.setting.allow_net))

    return RestoreTarget(
        folder=folder,
        tree=Path(resources.pool.path(row.tree)),
        root=externals.root,
        externals=externals.restore,
        spawn=resources.criu.into(spec, layer.hard_limits, no_host_network=not to_run),
        on_notice=furnish(spec, prepare_network),
        cgroup=spec.cgroup,
        aside=f"{resources.places.dumps}/{row.session}",
        stays_frozen=not to_run,
        stands_by=stands_by,
    )


def prepare_run_folder(tree: str, setting: Setting, nonce: str, branch: str) -> None:
    """Prepare /run/waypoint in the files `tree`, in which processes will be restored.
    `nonce`: that of their shell's hooks.
    Requests in it are marked as captured, so that no daemon ever carries them out in the copy. A run folder that the
    session has replaced is made anew.
    """
    with open_folder(layout.upper_of(tree)) as root:
        try:
            with beneath.opened(root, RUN_FOLDER, os.O_PATH | os.O_DIRECTORY) as folder:
                mark_captured(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            start_plan.renew_run_folder(root, setting, nonce, branch)


def _lowered(captured: Mapping[str, int], found: Mapping[str, int]) -> list[Degradation]:
    lost = hard_limits.above(captured, found)
    was = {name: "none" if most < 0 else str(most) for name, most in lost.items()}
    return [degradation("limit-lowered", name, f"{found[name]}, was {was[name]}") for name in lost]


def _plan_spec(resources: Resources, row: LiveRow, held: HeldCapture, size: tuple[int, int]) -> StartSpec:
    """Return the plan of the mounts that CRIU's images expect: the same mounts from outside, in the same order."""
    layer = held.processes
    tree = Path(resources.pool.path(row.tree))
    whole_sys = not any(path.startswith(f"{SYS}/") for path in layer.outside)
    folder = resources.places.folder_of(row.setting.base)
    plan = BasePlan(layer.overlays, [], layer.ids, whole_sys=whole_sys, folder=folder)
    spec = start_plan.ground_spec(row, plan, resources.places, tree, size, held.memory)
    if spec.outside != layer.outside:
        raise _missing(held.capture, "its mounts from outside would differ from those in the capture")
    return msgspec.structs.replace(spec, proc_readonly=layer.proc_readonly, masked=layer.masked)


def _missing(origin: Capture, said: str) -> Failed:
    return Failed("restore the processes of", origin.id[:12], said, "restore this on the machine")
