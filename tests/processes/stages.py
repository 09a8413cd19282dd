"""Makes sessions without a daemon for tests of CRIU, with the launcher's functions in a forked process."""

import contextlib
import faulthandler
import itertools
import os
import pickle
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from tests.criu_child import CriuChild
from tests.processes_now import name_of
from tests.waiting import DEADLINE_S, PATIENCE_S, wait_until
from waypoint.launch.criu import APART_SEEN
from waypoint.launch.enter import enter
from waypoint.launch.ground import start_plan
from waypoint.launch.ground.base import BasePlan
from waypoint.launch.ground.places import make_places, remove_group
from waypoint.launch.program import MASTER_FD
from waypoint.launch.spec import CRIU_SOCKET_FD, CriuBeside, CriuInto, EnterSpec, StartSpec
from waypoint.launch.start import start
from waypoint.launch.supervise import LaunchResult
from waypoint.linux.net import netns
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, namespaces, pidfd
from waypoint.model.ids import new_id
from waypoint.model.records import LiveRow, Setting
from waypoint.processes.criu.options import DumpOptions, name_externals
from waypoint.processes.criu.rpc import Criu
from waypoint.processes.criu.worker import Spawn
from waypoint.processes.freeze import freeze_for_dump
from waypoint.session.birth.users import find_user
from waypoint.upper.contract import PoolSizes
from waypoint.upper.open_pool import open_pool

Made = TypeVar("Made")

OWN_PROCESS_S = 120  # timeout of a whole test
MIB = 1 << 20
POOL_SIZES = PoolSizes(initial_bytes=256 * MIB, step_bytes=64 * MIB, headroom_bytes=0, floor_bytes=0)

# No `sh -i`: an interactive dash keeps /dev/tty open, which CRIU refuses ("ctty inheritance detected").
SHELL = ["/bin/sh", "-c", 'while read -r line; do eval "$line"; done']
HOLD = ["/bin/sh", "-c", "while :; do sleep 1000; done"]
LAYERS = BasePlan(["/"], [])


@dataclass(frozen=True, slots=True)
class Session:
    """`pid`: the host's pid of its init. `externals`: CRIU's options for mounts from outside, for a dump."""

    pid: int
    master: int
    spec: StartSpec
    row: LiveRow

    @property
    def cgroup(self) -> str:
        return self.spec.cgroup

    @property
    def externals(self) -> tuple[str, ...]:
        return name_externals(self.spec.outside, "").dump


@dataclass(frozen=True, slots=True)
class Fork:
    """The prepared mounts of a session's copy. `externals`: CRIU's options for mounts from outside, for a restore."""

    spec: StartSpec
    row: LiveRow
    root: str
    externals: tuple[str, ...]


class Stage:
    """Starts sessions with files in `folder`, inside the process of `in_own_process`. `close` ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        home, runtime = folder / "home", folder / "run"
        for path in (home, runtime):
            path.mkdir()
        self._places = make_places(home, runtime, f"stage-{os.getpid()}-{new_id()}", first_id=0)
        self._pool = open_pool(home, "auto", POOL_SIZES)
        self._numbers = itertools.count()
        self._groups: list[str] = []

    def close(self) -> None:
        for group in self._groups:
            cgroups.end(group)
        remove_group(self._places.cgroup)
        self._pool.close()

    def start(self, **changes: object) -> Session:
        """Start a session with a shell that executes lines from its terminal. `changes`: fields of its StartSpec."""
        row = self._row()
        tree = Path(self._pool.create(row.tree))
        start_plan.prepare_tree(tree, LAYERS, row.setting, new_id(), row.branch)
        spec = msgspec.structs.replace(self._spec(row, tree), **changes)
        _wait_for_threads()
        launched, handles = start(spec, [])
        if not launched.pid:
            raise OSError(launched.errno, launched.error, launched.path)
        process, master, run_folder = handles
        os.close(process)
        os.close(run_folder)
        return Session(launched.pid, master, spec, row)

    def enter(self, session: Session, argv: list[str], stdio: int) -> int:
        """Start one more process in the session, with `stdio` as stdin, stdout and stderr. Returns its pid."""
        spec = session.spec
        entry = EnterSpec(
            pid=session.pid,
            cgroup=spec.cgroup,
            identity=spec.identity,
            argv=argv,
            env=spec.env,
            cwd=spec.cwd,
            tty=False,
            rows=spec.rows,
            cols=spec.cols,
            seccomp="none",
        )
        _wait_for_threads()
        return _pid_of(enter(entry, [stdio] * 3))

    def listen(self, session: Session) -> int:
        """Start a process with a listening TCP socket in the session. Returns the port."""
        with netns.work_in(session.pid, lambda: socket.create_server(("127.0.0.1", 0))) as listener:
            # The socket is also stdin, stdout and stderr: this process's /dev/null is a file outside the session.
            self.enter(session, HOLD, listener.fileno())
            port: int = listener.getsockname()[1]
            return port

    def connect(self, session: Session, port: int) -> None:
        """Connect to the port on the session's loopback. Raises OSError if no process listens."""
        netns.work_in(session.pid, lambda: socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)).close()

    def place(self, session: Session) -> Fork:
        """Prepare a fork of the frozen `session`."""
        row = self._row()
        spec = self._spec(row, Path(self._pool.snapshot(session.row.tree, row.tree)))
        externals = name_externals(spec.outside, APART_SEEN)
        return Fork(spec, row, externals.root, externals.restore)

    def adopt(self, pid: int, fork: Fork) -> Session:
        """Return the restored session. `pid`: the host's pid of its init."""
        return Session(pid, pidfd.take(pid, MASTER_FD), fork.spec, fork.row)

    def spawn_beside(self, session: Session) -> Spawn:
        """Return a function that starts CRIU for a dump of the session."""
        run, group = str(self._places.kit.criu_run), self._places.dumps
        return lambda command: CriuChild(
            CriuBeside(
                pid=session.pid,
                run=run,
                cgroup=group,
                argv=command.argv(CRIU_SOCKET_FD),
                env=command.env,
            ),
            command,
        )

    def spawn_into(self, fork: Fork) -> Spawn:
        """Return a function that starts CRIU for a restore of the fork."""
        run = str(self._places.kit.criu_run)
        return lambda command: CriuChild(
            CriuInto(mounts=fork.spec, run=run, argv=command.argv(CRIU_SOCKET_FD), env=command.env), command
        )

    def dump(self, session: Session, name: str = "images") -> int:
        """Freeze the session and dump it to the folder `name`. Returns an open fd of the folder."""
        folder = self.folder / name
        folder.mkdir()
        fd = os.open(folder, os.O_RDONLY)
        freeze_for_dump(session.cgroup)
        options = DumpOptions(
            tree_pid=session.pid,
            images_fd=fd,
            work_fd=fd,
            freeze_cgroup=session.cgroup,
            externals=session.externals,
            own_network=True,
        )
        _wait_for_threads()
        Criu(criu_path(), self.spawn_beside(session)).dump(options)
        return fd

    def _row(self) -> LiveRow:
        user = find_user("/", "root")
        setting = Setting(base="/", binds=[], net="private", user=user, cwd="/", env={"TERM": "dumb"}, command=SHELL)
        name = f"t{next(self._numbers)}"
        return LiveRow(branch=name, session=name, tree=name, started=time.time(), setting=setting)

    def _spec(self, row: LiveRow, tree: Path) -> StartSpec:
        spec = start_plan.start_spec(row, LAYERS, self._places, tree, (24, 80))
        cgroups.create(spec.cgroup)
        self._groups.append(spec.cgroup)
        return spec


def _wait_for_threads() -> None:
    """Wait until this process has no other thread; one from `work_in` may still be ending.

    The launcher's functions clone the process without glibc (launch/supervise.py). A lock of glibc that an ending
    thread holds would stay locked in the clone, and setgid(2) would never return there.
    """
    wait_until(lambda: len(os.listdir("/proc/self/task")) == 1, "no other thread runs", brief=True)


def _pid_of(answer: LaunchResult) -> int:
    launched, handles = answer
    for fd in handles:
        os.close(fd)
    if not launched.pid:
        raise OSError(launched.errno, launched.error, launched.path)
    return launched.pid


def criu_path() -> Path:
    """Return the CRIU of the tests with the mark `requires("criu")`."""
    return Path(os.environ["WAYPOINT_CRIU"])


def on_stage(where: Path, work: Callable[[Stage], Made]) -> Made:
    """Call `work` in a process with a Stage. Returns its result, or fails with its exception."""

    def with_stage() -> Made:
        namespaces.become_subreaper()
        with contextlib.closing(Stage(where)) as stage:
            return work(stage)

    return in_own_process(with_stage)


def in_own_process(work: Callable[[], Made]) -> Made:
    """Call `work`, which returns a picklable value, in a forked process with its own mount namespace.

    Fails after OWN_PROCESS_S seconds; the process has then written its stack to stderr.
    """
    with tempfile.TemporaryFile() as said:  # not a pipe, which leftover processes might hold open
        child = os.fork()
        if child == 0:
            faulthandler.register(signal.SIGALRM, file=2)
            signal.alarm(OWN_PROCESS_S)
            try:
                namespaces.set_death_signal(9)
                namespaces.unshare(namespaces.CLONE_NEWNS)
                mounts.make_private("/")
                answer = pickle.dumps((work(), ""))
            except BaseException:
                answer = pickle.dumps((None, traceback.format_exc()))
            said.write(answer)
            said.flush()
            os._exit(0)
        process = pidfd.open(child)
        if not pidfd.wait_ended(process, OWN_PROCESS_S + 5):
            pidfd.send_signal(process, signal.SIGKILL)
        os.close(process)
        os.waitpid(child, 0)
        said.seek(0)
        answer = said.read()
    if not answer:
        pytest.fail("the process ended without an answer; its stack is on stderr", pytrace=False)
    made, failure = pickle.loads(answer)
    if failure:
        pytest.fail(failure, pytrace=False)
    result: Made = made
    return result


def type_line(session: Session, line: str) -> None:
    os.write(session.master, f"{line}\n".encode())


def wait_for_program(session: Session, *names: str) -> None:
    """Wait until processes with these names (comm) run in the session."""
    wait_until(
        lambda: set(names) <= {name_of(pid) for pid in cgroups.members(session.cgroup)},
        f"{names} run in the session",
        PATIENCE_S,
        brief=True,
    )
