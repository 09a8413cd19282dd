"""Runs CRIU on sessions of a home without the home's daemon: the least time that a dump and a restore can take.

Sessions, captures, mounts and options are the daemon's own; only the criu process is measured. The work is done by a
process of its own, `python -m tests.bench.raw_criu HOME DAEMON_PID`, because only a process with one thread can change
its mount namespace. Requests and answers are lines of JSON.
"""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from tests.bench.inside import record_of
from tests.criu_child import CriuChild
from tests.homes import Home
from tests.places import ROOT
from tests.waiting import wait_until
from waypoint.capture.layers.hot import Hot
from waypoint.capture.layers.processes import HUNG_S, STOP_S, open_for_root_of
from waypoint.launch.criu import APART_SEEN
from waypoint.launch.ground import start_plan
from waypoint.launch.ground.base import BasePlan
from waypoint.launch.ground.id_choice import IdChoice
from waypoint.launch.ground.lower_check import LowerCheck
from waypoint.launch.ground.places import SharedPlaces
from waypoint.launch.ground.skeleton import Kit
from waypoint.launch.spec import CRIU_SOCKET_FD, CriuBeside, CriuInto
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import cgroups, namespaces, pidfd
from waypoint.model.errors import Failed
from waypoint.model.ids import new_id
from waypoint.processes.criu.options import DumpOptions, RestoreOptions, name_externals
from waypoint.processes.criu.rpc import Criu
from waypoint.processes.criu.worker import CriuCommand, Process
from waypoint.processes.freeze import freeze_for_dump
from waypoint.processes.profiles import Profiles
from waypoint.session.live.record import RuntimeRecord
from waypoint.setup import criu_find
from waypoint.upper.contract import Pool
from waypoint.upper.open_pool import open_pool


class RawDump(NamedTuple):
    """`whole_ms`: from the start of the criu process to its end. `frozen_ms`: how long it held the processes."""

    whole_ms: float
    frozen_ms: float


class RawCriu:
    """Starts the process of `main`, and sends it requests. Everything that the process makes is removed at the end."""

    def __init__(self, home: Home, daemon_pid: int) -> None:
        """The daemon must have made a capture before, so that its CRIU is installed and known."""
        argv = [sys.executable, "-m", "tests.bench.raw_criu", str(home.path), str(daemon_pid)]
        self._process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def dump(self, branch: str, *, in_memory: bool = False) -> RawDump:
        """Dump the live session, which continues afterwards, to the disk of the home, or `in_memory` to a tmpfs."""
        whole_ms, frozen_ms = self._ask("dump", branch, *(["in memory"] if in_memory else []))
        return RawDump(whole_ms, frozen_ms)

    def restore_ms(self, branch: str, capture: str) -> float:
        """Restore the capture's processes with mounts like those of the live session on `branch`, and end them."""
        (taken_ms,) = self._ask("restore", branch, capture)
        return taken_ms

    def _ask(self, *words: str) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"bare CRIU could not {' '.join(words)}: status {self._process.wait()}")
        figures: list[float] = json.loads(answer)
        return figures


class _Work:
    """Dumps and restores, in the process of `main` and the daemon's mount namespace."""

    def __init__(self, home: Home, scratch: Path, in_memory: Path) -> None:
        self._home = home
        self._scratch = scratch
        self._in_memory = in_memory
        self._hot = Hot(home.path)
        self._pool = _open_pool(home.path)
        chosen = os.environ.get("WAYPOINT_CRIU")
        self._criu = criu_find.find(home.path, tries=lambda _: [], chosen=chosen).path
        self._numbers = itertools.count()

    def dump(self, branch: str, where: str = "") -> list[float]:
        found = record_of(self._home, branch)
        places = self._places(found)
        run = str(places.kit.criu_run)
        started: list[CriuChild] = []

        def spawn(command: CriuCommand) -> Process:
            argv = command.argv(CRIU_SOCKET_FD)
            beside = CriuBeside(
                pid=found.init_pid,
                run=run,
                cgroup=places.dumps,
                argv=argv,
                env=command.env,
            )
            started.append(CriuChild(beside, command))
            return started[-1]

        place = self._folder(self._in_memory if where else self._scratch)
        with place as folder, open_folder(folder) as images, open_folder(folder.parent) as work:
            options = DumpOptions(
                tree_pid=found.init_pid,
                images_fd=images,
                work_fd=work,
                freeze_cgroup=found.cgroup,
                externals=name_externals(found.outside, "").dump,
                timeout_s=STOP_S,
            )
            freeze_for_dump(found.cgroup)
            try:
                stats = Criu(self._criu, spawn).dump(options)
            finally:
                cgroups.thaw(found.cgroup)
        return [started[0].taken_ms, stats.frozen_us / 1000]

    def restore(self, branch: str, capture: str) -> list[float]:
        wait_until(lambda: capture not in self._hot.in_memory(), "the daemon has moved the capture to the disk")
        found = record_of(self._home, branch)
        row = msgspec.structs.replace(found.row, session=new_id(), tree=f"raw-{os.getpid()}-{next(self._numbers)}")
        places = self._places(found)
        plan = BasePlan(found.overlays, [], found.ids)
        spec = start_plan.ground_spec(row, plan, places, Path(self._pool.path(row.tree)), (24, 80))
        run = str(places.kit.criu_run)
        externals = name_externals(spec.outside, APART_SEEN)
        started: list[CriuChild] = []

        def spawn(command: CriuCommand) -> Process:
            into = CriuInto(mounts=spec, run=run, argv=command.argv(CRIU_SOCKET_FD), env=command.env)
            started.append(CriuChild(into, command))
            return started[-1]

        self._pool.snapshot(capture, row.tree)
        cgroups.create(spec.cgroup)
        try:
            images_of = open_for_root_of(found.ids, self._hot.images(capture))
            with self._folder(self._scratch) as place, open_folder(place) as work, images_of as images:
                options = RestoreOptions(
                    images_fd=images,
                    work_fd=work,
                    root=externals.root,
                    externals=externals.restore,
                    deadline_s=HUNG_S,
                    empty_network=found.row.setting.net != "host",
                )
                Criu(self._criu, spawn).restore(options)
        finally:
            cgroups.end(spec.cgroup)
            with contextlib.suppress(ChildProcessError):  # no child is left
                while os.waitpid(-1, 0):
                    continue
            self._pool.remove(row.tree)
        return [started[0].taken_ms]

    def _places(self, found: RuntimeRecord) -> SharedPlaces:
        """Return the folders of the daemon, which has filled them."""
        runtime = self._home.runtime
        return SharedPlaces(
            home=self._home.path,
            runtime=runtime,
            sessions=runtime / "sessions",
            merged=runtime / "merged",
            sys=runtime / "sys",
            kit=Kit(runtime / "kit", self._home.path),
            check_lower=LowerCheck(runtime),
            ids=IdChoice(0, runtime, runtime),  # not used: the record of each session has its own
            cgroup=found.cgroup.rpartition("/")[0],
            profiles=Profiles(),
        )

    @contextlib.contextmanager
    def _folder(self, scratch: Path) -> Iterator[Path]:
        """Yield a folder for images, which lies in a folder for the log, both in `scratch`."""
        place = scratch / str(next(self._numbers))
        (place / "images").mkdir(parents=True, mode=0o700)
        yield place / "images"
        shutil.rmtree(place)


def _open_pool(home: Path) -> Pool:
    """Open the pool, also if the daemon makes it grow at this moment."""
    opened: list[Pool] = []

    def is_open() -> bool:
        with contextlib.suppress(Failed):
            opened.append(open_pool(home))
        return bool(opened)

    wait_until(is_open, "the pool can be opened")
    return opened[0]


def main(home: Home, daemon_pid: int) -> None:
    namespaces.set_death_signal(9)
    namespaces.become_subreaper()  # restored processes become children of this one, which reaps them
    namespaces.setns(pidfd.open(daemon_pid), namespaces.CLONE_NEWNS)
    scratch = home.path.parent / "raw"
    with tempfile.TemporaryDirectory(prefix="waypoint-bench-", dir="/dev/shm") as in_memory:
        work = _Work(home, scratch, Path(in_memory))
        for line in sys.stdin:
            verb, *words = json.loads(line)
            print(json.dumps(work.dump(*words) if verb == "dump" else work.restore(*words)), flush=True)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(Home(Path(sys.argv[1])), int(sys.argv[2]))
