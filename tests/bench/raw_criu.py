"""Bare CRIU on sessions of a home, from outside of its daemon: the least that a dump and a restore can take.

The sessions, captures, mounts and options are the daemon's own. What is bare: nothing is asked for, recorded, drained,
sealed or proved; the clock runs while the criu process does. The work is done by a process of one thread, because it
changes its namespaces: `python -m tests.bench.raw_criu HOME DAEMON_PID` with requests and answers as lines of JSON.
"""

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from tests.bench.inside import record_of
from tests.homes import Home
from tests.places import ROOT
from waypoint.capture.hot import Hot
from waypoint.capture.taking import STOP_S
from waypoint.linux import cgroups, namespaces, pidfd
from waypoint.linux.descriptors import open_folder
from waypoint.model.ids import new_id
from waypoint.processes import criu_find
from waypoint.processes.criu_options import DumpOptions, RestoreOptions
from waypoint.processes.criu_rpc import Criu
from waypoint.processes.criu_worker import Command, Process
from waypoint.processes.freeze import freeze_for_dump
from waypoint.session.ending import end_processes
from waypoint.session.ground import start_plan
from waypoint.session.ground.base import BasePlan, Layer
from waypoint.session.ground.lower_check import LowerCheck
from waypoint.session.ground.places import Places
from waypoint.session.ground.skeleton import Kit
from waypoint.session.launch import launcher
from waypoint.session.launch.criu import APART_SEEN
from waypoint.session.launch.externals import name_externals
from waypoint.session.launch.spec import CRIU_SOCKET_FD, CriuBeside, CriuInto, Launched, LaunchSpec
from waypoint.session.record import RuntimeRecord
from waypoint.session.restoring import SILENCE_S
from waypoint.upper.contract import Pool
from waypoint.upper.open_pool import open_pool


class RawDump(NamedTuple):
    """`whole_ms`: of the criu process, from its start to its end. `frozen_ms`: for which it held the processes."""

    whole_ms: float
    frozen_ms: float


class RawCriu:
    """The process that does it, from the side of the benchmark. Everything it made is gone when it is closed."""

    def __init__(self, home: Home, daemon_pid: int) -> None:
        """The daemon must have captured something: then it has found its CRIU."""
        argv = [sys.executable, "-m", "tests.bench.raw_criu", str(home.path), str(daemon_pid)]
        self._process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def dump(self, branch: str) -> RawDump:
        """The session stands still for it, and goes on."""
        whole_ms, frozen_ms = self._ask("dump", branch)
        return RawDump(whole_ms, frozen_ms)

    def restore_ms(self, branch: str, capture: str) -> float:
        """Bring the capture's processes to life, on a ground as that of the live session on `branch`, and end them."""
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


class _Child:
    """A criu that is our child. `taken_ms`: from when it is one, all but the exec made, to its end."""

    def __init__(self, spec: LaunchSpec, command: Command) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            self.pid = launcher.fork_for(spec)
            if self.pid == 0:
                launcher.carry_out(spec, [theirs.fileno(), command.socket_fd, command.words_fd])
            theirs.close()
            text, handles, _flags, _address = socket.recv_fds(ours, 1 << 16, 4, socket.MSG_CMSG_CLOEXEC)
        self._began = time.perf_counter()
        for fd in handles:
            os.close(fd)
        launched = msgspec.json.decode(text, type=Launched)
        if not launched.pid:
            raise OSError(launched.errno, launched.error, launched.path)
        self.taken_ms = 0.0

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.taken_ms = 1000 * (time.perf_counter() - self._began)
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        os.kill(self.pid, 9)


class _Work:
    """In the process of its own, in the daemon's mounts."""

    def __init__(self, home: Home, scratch: Path) -> None:
        self._home = home
        self._scratch = scratch
        self._hot = Hot(home.path)
        self._pool: Pool = open_pool(home.path)
        chosen = os.environ.get("WAYPOINT_CRIU")
        self._criu = criu_find.find(home.path, tries=lambda _: [], chosen=chosen).path
        self._numbers = itertools.count()

    def dump(self, branch: str) -> list[float]:
        found = record_of(self._home, branch)
        places = self._places(found)
        run = str(places.kit.criu_run)
        started: list[_Child] = []

        def spawn(command: Command) -> Process:
            argv = command.argv(CRIU_SOCKET_FD)
            beside = CriuBeside(pid=found.init_pid, run=run, cgroup=places.dumps, argv=argv, env=command.env)
            started.append(_Child(beside, command))
            return started[-1]

        with self._folder() as folder, open_folder(folder) as images, open_folder(folder.parent) as work:
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
                result = Criu(self._criu, spawn).dump(options)
            finally:
                cgroups.thaw(found.cgroup)
        return [started[0].taken_ms, result.stats.frozen_us / 1000]

    def restore(self, branch: str, capture: str) -> list[float]:
        found = record_of(self._home, branch)
        row = msgspec.structs.replace(found.row, session=new_id(), tree=f"raw-{os.getpid()}-{next(self._numbers)}")
        places = self._places(found)
        layers = BasePlan([Layer(target) for target in found.overlays], [])
        spec = start_plan.start_spec(row, layers, places, Path(self._pool.path(row.tree)), size=(24, 80))
        run = str(places.kit.criu_run)
        externals = name_externals(spec.outside, APART_SEEN)
        started: list[_Child] = []

        def spawn(command: Command) -> Process:
            into = CriuInto(ground=spec, run=run, argv=command.argv(CRIU_SOCKET_FD), env=command.env)
            started.append(_Child(into, command))
            return started[-1]

        self._pool.snapshot(capture, row.tree)
        cgroups.create(spec.cgroup)
        try:
            with self._folder() as place, open_folder(place) as work, open_folder(self._hot.images(capture)) as images:
                options = RestoreOptions(
                    images_fd=images,
                    work_fd=work,
                    root=externals.root,
                    externals=externals.restore,
                    deadline_s=SILENCE_S,
                    empty_network=found.row.setting.net != "host",
                )
                Criu(self._criu, spawn).restore(options)
        finally:
            end_processes(spec.cgroup)
            with contextlib.suppress(ChildProcessError):  # that was the last of them
                while os.waitpid(-1, 0):
                    continue
            self._pool.remove(row.tree)
        return [started[0].taken_ms]

    def _places(self, found: RuntimeRecord) -> Places:
        """Those of the daemon, which has made what is in them."""
        runtime = self._home.runtime
        return Places(
            home=self._home.path,
            runtime=runtime,
            sessions=runtime / "sessions",
            merged=runtime / "merged",
            sys=runtime / "sys",
            kit=Kit(runtime / "kit", self._home.path),
            check_lower=LowerCheck(runtime),
            cgroup=found.cgroup.rpartition("/")[0],
            profile_env={},
        )

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        """A folder for images, in one for the log. On the disk of the home."""
        place = self._scratch / str(next(self._numbers))
        (place / "images").mkdir(parents=True, mode=0o700)
        yield place / "images"
        shutil.rmtree(place)


def main(home: Home, daemon_pid: int) -> None:
    namespaces.set_death_signal(9)
    namespaces.become_subreaper()  # what is restored is ours to reap
    namespaces.setns(pidfd.open(daemon_pid), namespaces.CLONE_NEWNS)
    scratch = home.path.parent / "raw"
    work = _Work(home, scratch)
    for line in sys.stdin:
        verb, *words = json.loads(line)
        print(json.dumps(work.dump(*words) if verb == "dump" else work.restore(*words)), flush=True)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(Home(Path(sys.argv[1])), int(sys.argv[2]))
