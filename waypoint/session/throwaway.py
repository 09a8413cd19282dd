"""A session for the doctor's trials: made by the steps that every session is made by, used for a moment, destroyed
whole.

For a process of one thread in a mount namespace of its own, in which everything mounted here vanishes with it. Out of
scope: what is tried on the session (waypoint/processes/trial.py).
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from waypoint.linux import cgroups, descriptors, mounts, namespaces
from waypoint.linux.filesystem import copy_tree
from waypoint.processes.criu_worker import Command, Process
from waypoint.session import launch
from waypoint.session.place import mount_apart
from waypoint.session.launch_spec import BindMount, EnterSpec, Identity, Overlay, StartSpec
from waypoint.session.skeleton import Kit
from waypoint.session.start_plan import PROC_READONLY

Made = TypeVar("Made")

# No `sh -i`: an interactive dash keeps /dev/tty open, which CRIU refuses ("ctty inheritance detected").
_SHELL = ["/.waypoint/init", "--", "/bin/sh", "-c", 'exec 3>&-; while read -r line; do eval "$line"; done']
# In the background: pid 1 then adopts it. CRIU dumps pid 1's descendants only.
_HOLD = "(while :; do sleep 1000; done) & exit 0"


@dataclass(frozen=True, slots=True)
class Live:
    """A running session. `pid`: its init as the host sees it. `master`: our duplicate of its terminal's master."""

    pid: int
    master: int
    spec: StartSpec
    cgroup: str


class Throwaway:
    """Makes sessions in the folder `where`, one cgroup for all. `with Throwaway(where) as stage`: at the end all are
    gone.

    Raises what the failing step raised: OSError with call and path, HostLacks.
    """

    def __init__(self, where: Path) -> None:
        self._token = secrets.token_hex(4)
        self.folder = where / f"trial-{self._token}"
        self._count = 0
        self._open_fds: list[int] = []

    def __enter__(self) -> "Throwaway":
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            self.folder.mkdir(parents=True, mode=0o700)
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._cgroup = f"{cgroups.find_hierarchies().unified}/waypoint-trial-{self._token}"
            cgroups.create(self._cgroup)
            undo.callback(self._end_all)
            self._kit = Kit(self.folder / "kit", self.folder)
            self._kit.mount()
            undo.callback(mounts.umount, self.folder / "kit", mounts.MNT_DETACH)
            sysfs = self.folder / "sys"
            sysfs.mkdir()
            mounts.mount("sysfs", sysfs, "sysfs", mounts.MS_RDONLY)
            undo.callback(mounts.umount, sysfs, mounts.MNT_DETACH)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def start(self) -> Live:
        """A session with a plain shell on its terminal."""
        spec = self._plan(self._new_tree())
        launched = launch.start(spec)
        if not launched.pid:
            raise OSError(launched.errno, launched.error, launched.path)
        return self._live(launched.pid, spec)

    def listen(self, live: Live) -> int:
        """Give the session a process that holds a listening TCP socket; its port on the session's loopback."""
        with in_network_of(live.pid, lambda: socket.create_server(("127.0.0.1", 0))) as listener:
            port: int = listener.getsockname()[1]
            identity = Identity(uid=0, gid=0, groups=[])
            argv = ["/bin/sh", "-c", _HOLD]
            spec = EnterSpec(
                pid=live.pid,
                cgroups=[live.cgroup],
                identity=identity,
                argv=argv,
                env={},
                cwd=["/"],
                tty=False,
                rows=0,
                cols=0,
            )
            # The socket as all three: /dev/null of ours would be a file outside the session.
            launched = launch.enter(spec, [listener.fileno()] * 3)
        if not launched.pid:
            raise OSError(launched.errno, launched.error, launched.path)
        return port

    def place(self, live: Live) -> StartSpec:
        """Where `live`, which is frozen, can be restored as a fork: a copy of its files, a cgroup, new mounts of the
        same list."""
        tree = self._new_tree(live.spec.overlays[0].upper)
        return self._plan(tree)

    def adopt(self, pid: int, spec: StartSpec) -> Live:
        return self._live(pid, spec)

    def end(self, live: Live) -> None:
        cgroups.kill(live.cgroup)
        cgroups.wait_empty(live.cgroup)

    def spawn_beside(self, live: Live) -> Callable[[Command], Process]:
        """For a dump: criu in the session's network namespace, where it needs neither dump it nor search the host's
        connections."""

        def prepare() -> None:
            self._give_run()
            namespaces.setns(os.pidfd_open(live.pid), namespaces.CLONE_NEWNET)

        return lambda command: _spawn(command, prepare)

    def spawn_into(self, spec: StartSpec) -> Callable[[Command], Process]:
        """For a restore: criu where the fork is to be: its cgroup, a new network namespace, its mounts."""

        def prepare() -> None:
            os.setsid()
            for path in spec.cgroups:
                cgroups.enter(path)
            launch._new_network(spec.net)
            self._give_run()
            mount_apart(spec, apart(spec))
            namespaces.join_new_session_keyring()

        return lambda command: _spawn(command, prepare)

    def _give_run(self) -> None:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        mounts.make_slave("/")
        mounts.bind(self._kit.criu_run, "/run")

    def _plan(self, tree: Path) -> StartSpec:
        group = f"{self._cgroup}/{tree.name}"
        cgroups.create(group)
        merged = tree / "merged"
        skeleton = self._kit.skeleton("/", "/")
        lowers = [skeleton, "/"] if skeleton else ["/"]
        return StartSpec(
            cgroups=[group],
            merged=str(merged),
            overlays=[Overlay(target="/", lowers=lowers, upper=str(tree / "upper"), work=str(tree / "work"))],
            binds=[
                BindMount(source=str(self._kit.dev), target="/dev", readonly=True, device_nodes=True),
                BindMount(source=str(self.folder / "sys"), target="/sys", readonly=True),
            ],
            proc_readonly=[name for name in PROC_READONLY if os.path.exists(f"/proc/{name}")],
            net="private",
            identity=Identity(uid=0, gid=0, groups=[]),
            argv=_SHELL,
            env={"PATH": "/usr/bin:/bin", "TERM": "dumb", "PS1": "$ "},
            cwd=["/"],
            rows=24,
            cols=80,
        )

    def _new_tree(self, upper_of: str | None = None) -> Path:
        tree = self.folder / f"t{self._count}"
        self._count += 1
        for part in ("work", "merged"):
            (tree / part).mkdir(parents=True)
        if upper_of is None:
            (tree / "upper").mkdir()
            (tree / "upper").chmod(0o755)
        else:
            copy_tree(upper_of, tree / "upper")
        return tree

    def _live(self, pid: int, spec: StartSpec) -> Live:
        master = descriptors.take(pid, launch.MASTER_FD)
        self._open_fds.append(master)
        return Live(pid, master, spec, spec.cgroups[0])

    def _end_all(self) -> None:
        cgroups.kill(self._cgroup)
        cgroups.wait_empty(self._cgroup)
        for fd in self._open_fds:
            os.close(fd)
        for number in range(self._count):
            cgroups.remove(f"{self._cgroup}/t{number}")
        cgroups.remove(self._cgroup)


def apart(spec: StartSpec) -> str:
    """The folder for the mounts of a restore."""
    return f"{spec.merged}-apart"


def in_network_of(pid: int, work: Callable[[], Made]) -> Made:
    """Do `work` in the network namespace of `pid`; what it raises is raised here. A socket stays in the namespace it
    was made in."""

    def enter_and_work() -> Made:
        pidfd = os.pidfd_open(pid)
        try:
            namespaces.setns(pidfd, namespaces.CLONE_NEWNET)
        finally:
            os.close(pidfd)
        return work()

    # A thread: it alone changes its namespace, and is gone afterwards.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(enter_and_work).result()


def _spawn(command: Command, prepare: Callable[[], None]) -> Process:
    def prepare_or_say() -> None:
        try:
            prepare()
        except BaseException as error:  # noqa: BLE001 - subprocess would keep the words to itself
            os.write(2, f"{error}\n".encode(errors="replace"))
            os._exit(127)

    # preexec_fn is safe here: this process has one thread.
    return subprocess.Popen(
        command.argv,
        env=command.env,
        pass_fds=command.pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=command.words_fd,
        stderr=command.words_fd,
        preexec_fn=prepare_or_say,
    )
