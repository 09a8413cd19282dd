"""What the doctor's sessions stand on: a small pool, a kit, a cgroup. Made for one trial and taken away whole.

For a process of one thread in a mount namespace of its own: what is mounted here vanishes with it, also if it is
killed. The folder and the cgroup do not; their names carry the pid, and the next trial removes those of dead ones.
"""

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Self

from waypoint.linux import cgroups, filesystem, mounts, namespaces
from waypoint.session.ground.skeleton import Kit
from waypoint.session.ground.start_plan import PROC_READONLY, SHM
from waypoint.session.launch.spec import RUN_FOLDER, BindMount, Identity, MemoryMount, Overlay, StartSpec
from waypoint.upper.contract import Pool, PoolSizes
from waypoint.upper.open_pool import open_pool

PREFIX = "waypoint-trial-"
MIB = 1 << 20
POOL_SIZES = PoolSizes(initial_bytes=256 * MIB, step_bytes=64 * MIB, headroom_bytes=0, floor_bytes=0)


class Ground:
    """`with Ground(where) as ground`. Raises OSError or WaypointError; nothing is left then."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self._name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self.folder = where / self._name
        self._count = 0

    def __enter__(self) -> Self:
        # What a session leaves behind has to be reaped by us, not by the machine's pid 1 in its own time.
        namespaces.become_subreaper()
        unified = cgroups.find_hierarchies().unified
        sweep(self._where, unified)
        with contextlib.ExitStack() as undo:
            self.folder.mkdir(parents=True, mode=0o700)
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._cgroup = f"{unified}/{self._name}"
            cgroups.create(self._cgroup)
            undo.callback(remove_group, self._cgroup)
            self._kit = Kit(self.folder / "kit", self.folder)
            self._kit.mount()
            undo.callback(mounts.umount, self.folder / "kit", mounts.MNT_DETACH)
            self._sys = self.folder / "sys"
            self._sys.mkdir()
            mounts.mount("sysfs", self._sys, "sysfs", mounts.MS_RDONLY)
            undo.callback(mounts.umount, self._sys, mounts.MNT_DETACH)
            (self.folder / "home").mkdir()
            has_room = filesystem.free_bytes(self.folder) > 2 * POOL_SIZES.initial_bytes
            self.pool: Pool = open_pool(self.folder / "home", "auto" if has_room else "copy", POOL_SIZES)
            undo.callback(self.pool.close)
            undo.callback(self._end)  # first of all: a session has the pool in use
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def criu_run(self) -> Path:
        """What becomes /run of CRIU."""
        return self._kit.criu_run

    def plan(self, argv: list[str], upper_of: StartSpec | None = None) -> StartSpec:
        """A session on the host's root, run by root, with a new tree of the pool: empty, or a snapshot of another's."""
        name = f"t{self._count}"
        self._count += 1
        if upper_of is None:
            tree = Path(self.pool.create(name))
            (tree / "upper" / RUN_FOLDER).mkdir(mode=0o755, parents=True)
            (tree / "work").mkdir()
        else:
            tree = Path(self.pool.snapshot(Path(upper_of.overlays[0].upper).parent.name, name))
        merged = self.folder / f"merged-{name}"
        merged.mkdir()
        cgroups.create(f"{self._cgroup}/{name}")
        skeleton = self._kit.skeleton("/", "/")
        return StartSpec(
            cgroup=f"{self._cgroup}/{name}",
            merged=str(merged),
            overlays=[
                Overlay(
                    target="/",
                    lowers=[skeleton, "/"] if skeleton else ["/"],
                    upper=str(tree / "upper"),
                    work=str(tree / "work"),
                )
            ],
            binds=[
                BindMount(source=str(self._kit.dev), target="/dev", readonly=True, device_nodes=True),
                BindMount(source=str(self._sys), target="/sys", readonly=True),
            ],
            memory=[MemoryMount(target=SHM)],
            proc_readonly=list(PROC_READONLY),
            net="private",
            identity=Identity(uid=0, gid=0, groups=[]),
            argv=argv,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM": "dumb"},
            cwd=["/"],
            rows=24,
            cols=80,
        )

    def _end(self) -> None:
        cgroups.kill(self._cgroup)
        cgroups.wait_empty(self._cgroup)


def sweep(where: Path, unified: str) -> None:
    """Remove what trials left that were killed: sessions with their cgroups, and folders in `where`."""
    for group in Path(unified).glob(f"{PREFIX}*"):
        if not _is_running(group.name):
            remove_group(str(group))
    for folder in where.glob(f"{PREFIX}*"):
        if not _is_running(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def remove_group(group: str) -> None:
    """End whatever runs in the group and below it, and remove it."""
    cgroups.kill(group)
    cgroups.wait_empty(group)
    for below in Path(group).glob("t*"):
        cgroups.remove(str(below))
    cgroups.remove(group)


def _is_running(name: str) -> bool:
    pid = int(name.removeprefix(PREFIX).partition("-")[0])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
