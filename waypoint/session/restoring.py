"""A session with the processes of a capture, on files that are there."""

import asyncio
import contextlib
import shutil
import time
from pathlib import Path

from waypoint.capture.taking import image_bytes
from waypoint.linux import cgroups, machine, procfs
from waypoint.linux.descriptors import open_folder
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged
from waypoint.model.records import Capture, LiveRow, ProcessesLayer
from waypoint.processes import ports
from waypoint.processes.criu_causes import CriuFailed
from waypoint.processes.criu_options import RestoreOptions
from waypoint.processes.criu_rpc import Criu
from waypoint.session import record
from waypoint.session.exec.record import carry_over
from waypoint.session.ground import start_plan
from waypoint.session.ground.base import BasePlan, Layer
from waypoint.session.home_ground import HomeGround
from waypoint.session.launch.criu import APART_SEEN
from waypoint.session.launch.criu_process import furnish, spawn_with
from waypoint.session.launch.externals import Externals, name_externals
from waypoint.session.launch.spec import CriuInto, StartSpec
from waypoint.session.live import LiveSession
from waypoint.session.record import RuntimeRecord
from waypoint.session.terminal import keepsake

# A CRIU that says nothing for so long will say nothing more.
SILENCE_S = 120.0
# Memory that is to be left for everybody else.
_SPARE_BYTES = 64 << 20


async def restore(ground: HomeGround, row: LiveRow, origin: Capture) -> LiveSession:
    """Bring the processes of `origin`, which was checked, to life on the tree of `row`, which is a copy of its files.

    Raises CannotCapture with CRIU's reason, Failed, OSError; the caller undoes the rest.
    """
    layer = _processes(origin)
    places = ground.places
    spec = plan_spec(ground, row, origin, layer)
    externals = name_externals(spec.outside, APART_SEEN)
    into = spawn_with(
        ground.launcher,
        lambda argv, env: CriuInto(ground=spec, run=str(places.kit.criu_run), argv=argv, env=env),
    )
    folder = record.make_folder(places.sessions, row.session)

    def bring_back() -> int:
        keepsake.take_out(ground.hot.terminal(origin.id), folder)
        return _restore(ground, Criu(ground.find_criu().path, into), origin, externals, folder)

    pid = await asyncio.to_thread(bring_back)
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
        left_out=[],
    )
    elapsed_s = time.clock_gettime(time.CLOCK_BOOTTIME) - origin.clock
    carry_over(str(folder / keepsake.EXEC), elapsed_s, lambda: cgroups.members(spec.cgroup))
    record.save(folder, entry)
    live = LiveSession.adopt(entry, folder, ground.launcher)
    with contextlib.suppress(OSError):  # the shell goes on with the old name of its branch: no reason to fail
        live.shell.desk.folder.write(start_plan.BRANCH_FILE, f"{row.branch}\n".encode())
    return live


def plan_spec(ground: HomeGround, row: LiveRow, origin: Capture, layer: ProcessesLayer) -> StartSpec:
    """The ground that the images expect: the same mounts from outside, in the same order.

    Raises Failed if what was mounted there is not there any more.
    """
    plan = BasePlan([Layer(target) for target in layer.overlays], [])
    for target in plan.layers:
        lower = Path(row.setting.base) / target.target.lstrip("/")
        if not lower.is_dir():
            raise _missing(origin, f"{lower}, which it has an overlay of, is not there")
    for bind in row.setting.binds:
        start_plan.check_bind(bind)
    terminal = origin.layers.terminal
    size = (terminal.rows, terminal.cols) if terminal is not None else (24, 80)
    tree = Path(ground.pool.path(row.tree))
    shm = ground.hot.shm(origin.id)
    content = str(shm) if shm.is_dir() else ""
    spec = start_plan.start_spec(row, plan, ground.places, tree, size=size, shm=content)
    if spec.outside != layer.outside:
        raise _missing(origin, "it was made with other mounts from outside than there are now")
    return spec


def _missing(origin: Capture, said: str) -> Failed:
    return Failed("restore the processes of", origin.id[:12], said, "bring it back, or restore with --only files")


def damaged(origin: Capture, said: str) -> StoreDamaged:
    next_step = "go back to another capture ('waypoint log --all' lists them)"
    return StoreDamaged("go back to", f"capture {origin.id[:12]}", said, next_step)


def check(ground: HomeGround, origin: Capture, copies: int) -> None:
    """What can be known before anything is made: raises as `restore` if so many copies cannot be brought to life.

    CannotCapture without processes, or if they have a port of the host's network that is taken; Failed if the machine
    has not the memory; StoreDamaged if a file is missing or cut off: CRIU would wait for ever for the rest of the
    memory.
    """
    layer = _processes(origin)
    _check_memory(origin, layer, copies)
    _check_ports(origin, layer, copies)
    hot = ground.hot
    terminal = hot.terminal(origin.id)
    missing = [path for path in (terminal / keepsake.RING, terminal / keepsake.EXEC) if not path.is_file()]
    try:
        size = image_bytes(hot.images(origin.id))
    except FileNotFoundError:
        missing.append(hot.images(origin.id))
        size = 0
    if missing:
        raise damaged(origin, f"{missing[0]} is missing")
    if size != layer.size_bytes:
        raise damaged(origin, f"{hot.images(origin.id)} has {size} bytes, written were {layer.size_bytes}")


def _processes(origin: Capture) -> ProcessesLayer:
    if origin.layers.processes is None:
        said = f"it is of tier {origin.tier}: it has no processes"
        raise CannotCapture("restore the processes of", origin.id[:12], said, "leave out --tier live")
    return origin.layers.processes


def _check_ports(origin: Capture, layer: ProcessesLayer, copies: int) -> None:
    if not layer.ports:
        return
    found = ports.taken(layer.ports) if copies == 1 else layer.ports
    if found:
        whose = "others have them now" if copies == 1 else "only one of them could"
        said = f"it has ports of the host's network ({', '.join(found)}), and {whose}"
        next_step = "end what has them, or restore --only files; sessions with a network of their own can be copied"
        raise CannotCapture("restore the processes of", origin.id[:12], said, next_step)


def _check_memory(origin: Capture, layer: ProcessesLayer, copies: int) -> None:
    available = machine.available_memory_bytes()
    needed = layer.size_bytes * copies
    if needed + _SPARE_BYTES > available:
        what = "its processes need" if copies == 1 else f"{copies} copies of its processes need"
        said = f"{what} {needed >> 20} MiB of memory, {available >> 20} MiB are available"
        next_step = "end other sessions, " + ("or restore --only files" if copies == 1 else "or make fewer copies")
        raise Failed("restore the processes of", origin.id[:12], said, next_step)


def _restore(ground: HomeGround, criu: Criu, origin: Capture, externals: Externals, folder: Path) -> int:
    own_network = origin.setting.net != "host"
    work = folder / "criu"
    work.mkdir(mode=0o700)
    with open_folder(ground.hot.images(origin.id)) as images_fd, open_folder(work) as work_fd:
        options = RestoreOptions(
            images_fd=images_fd,
            work_fd=work_fd,
            root=externals.root,
            externals=externals.restore,
            deadline_s=SILENCE_S,
            empty_network=own_network,
            on_notice=furnish() if own_network else None,
        )
        try:
            pid = criu.restore(options).pid
        except CriuFailed as error:
            raise error.moved(ground.hot.keep_log(error.log, f"{folder.name}-restore.log")) from error
    shutil.rmtree(work)
    return pid
