"""Starting CRIU through the launcher: the implementation of `Spawn` (processes/criu/worker.py) for sessions."""

import asyncio
import contextlib
import functools
import os
import select
import signal

from waypoint.launch import externals
from waypoint.launch.launcher_link import Launcher, Started
from waypoint.launch.spec import CRIU_SOCKET_FD, CriuBeside, CriuInto, StartSpec
from waypoint.launch.start import furnish_network
from waypoint.linux.net import netns
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, pidfd
from waypoint.model.ids import new_id
from waypoint.processes.criu.options import Notice, OnNotice
from waypoint.processes.criu.worker import CriuCommand, Process, Spawn


class LaunchedCriu:
    """A CRIU process that is not the daemon's child; used through its pidfd."""

    def __init__(self, started: Started, group: str) -> None:
        """`group`: CRIU's own cgroup, to be removed; "": CRIU runs in the cgroup of a session."""
        self.pid = started.pid
        (self._pidfd,) = started.handles
        self._group = group

    def wait(self) -> int:
        """Block until CRIU has ended, then end the helpers left in CRIU's own group, and remove the group. Returns 0,
        since only the launcher could read the exit status.
        """
        if self._pidfd >= 0:
            select.select([self._pidfd], [], [])
            os.close(self._pidfd)
            self._pidfd = -1
            if self._group:
                with contextlib.suppress(TimeoutError):  # a helper cannot be killed: its group stays
                    cgroups.end(self._group)
        return 0

    def kill(self) -> None:
        """Send SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                pidfd.send_signal(self._pidfd, signal.SIGKILL)


class CriuSpawner:
    """Makes the functions that start CRIU through a home's launcher. To be created in the event loop; the functions
    must be called in other threads while the loop runs. They block until CRIU has started, and raise OSError and
    Failed.
    """

    def __init__(self, launcher: Launcher, run: str, dumps: str) -> None:
        """`run`: the host folder that becomes CRIU's /run. `dumps`: the parent of the cgroups of dumping CRIUs."""
        self._launcher = launcher
        self._run = run
        self._dumps = dumps
        self._loop = asyncio.get_running_loop()

    def beside(self, init_pid: int) -> Spawn:
        """The function for a dump of the session whose pid 1 is `init_pid`, as the host sees it."""

        def spawn(command: CriuCommand) -> Process:
            group = f"{self._dumps}/{new_id()}"
            cgroups.create(group)
            try:
                argv = command.argv(CRIU_SOCKET_FD)
                spec = CriuBeside(pid=init_pid, run=self._run, cgroup=group, argv=argv, env=command.env)
                return self._start(spec, command, group)
            except BaseException:
                cgroups.end(group)
                raise

        return spawn

    def into(self, start: StartSpec, hard_limits: dict[str, int]) -> Spawn:
        """The function for a restore. `start`: mounts and cgroup of the restored session. `hard_limits`: those of the
        captured processes.
        """

        def spawn(command: CriuCommand) -> Process:
            argv = command.argv(CRIU_SOCKET_FD)
            spec = CriuInto(mounts=start, run=self._run, argv=argv, env=command.env, hard_limits=hard_limits)
            try:
                return self._start(spec, command)
            except OSError as error:
                raise externals.misplaced(error) or error from error

        return spawn

    def _start(self, spec: CriuBeside | CriuInto, command: CriuCommand, group: str = "") -> Process:
        starting = self._launcher.carry_out(spec, (command.socket_fd, command.words_fd))
        return LaunchedCriu(asyncio.run_coroutine_threadsafe(starting, self._loop).result(), group)


def furnish(start: StartSpec) -> OnNotice:
    """A listener for the restore of a session with the mounts of `start`: before a process of the session runs, sets up
    the new network namespace, and raises Misplaced if a mount is missing or differs.
    """
    root = 0

    def hear(notice: Notice) -> None:
        nonlocal root
        root = notice.pid or root
        if notice.stage == "post-setup-namespaces" and start.net != "host":
            netns.work_in(root, functools.partial(furnish_network, start.net))
        if notice.stage == "post-restore":
            try:
                externals.check_mounts(start, mounts.read_mounts(root))
            except OSError as error:
                raise externals.misplaced(error) or error from error

    return hear
