"""Starting CRIU through the launcher: the implementation of `Spawn` (processes/criu/worker.py) for sessions."""

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import Callable

from waypoint.launch import externals
from waypoint.launch.launcher_link import Launcher, Started
from waypoint.launch.spec import (
    CRIU_SOCKET_FD,
    TEMPLATE_IMAGES_FD,
    TEMPLATE_PLAN_FD,
    CriuBeside,
    CriuInto,
    CriuTemplate,
    StartSpec,
)
from waypoint.launch.start import furnish_network
from waypoint.linux.net import netns
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, pidfd
from waypoint.model.ids import new_id
from waypoint.processes.criu.options import Notice, OnNotice
from waypoint.processes.criu.worker import CriuCommand, Process, Spawn


class LaunchedCriu:
    """A CRIU process, used through its pidfd because it is not the daemon's child."""

    def __init__(self, started: Started, group: str) -> None:
        """`group`: CRIU's own cgroup, which `wait` removes; "" if CRIU runs in the cgroup of a session."""
        self.pid = started.pid
        (self._pidfd,) = started.handles
        self._group = group

    def wait(self) -> int:
        """Block until CRIU has ended, then kill the processes left in CRIU's own cgroup and remove the cgroup. Always
        returns 0, because only the launcher, as CRIU's parent, could read the exit status.
        """
        if self._pidfd >= 0:
            pidfd.wait_ended(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
            if self._group:
                with contextlib.suppress(TimeoutError):  # a process cannot be killed, so the cgroup stays
                    cgroups.end(self._group)
        return 0

    def kill(self) -> None:
        """Send SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                pidfd.send_signal(self._pidfd, signal.SIGKILL)


class CriuSpawner:
    """Makes functions that start CRIU through the launcher of a home.

    Create it in the event loop. Call the functions in other threads while the loop runs: they block until CRIU has
    started. They raise OSError and Failed.
    """

    def __init__(self, launcher: Launcher, run: str, dumps: str) -> None:
        """`run`: the host folder that becomes CRIU's /run. `dumps`: the parent of the cgroups of dumping CRIUs."""
        self._launcher = launcher
        self._run = run
        self._dumps = dumps
        self._loop = asyncio.get_running_loop()

    def beside(self, init_pid: int, *, is_urgent: bool = True) -> Spawn:
        """Return the function that starts a CRIU for a dump. `init_pid`: the host's pid of the session's pid 1.
        `is_urgent`: whether somebody waits for the session.
        """

        def spawn(command: CriuCommand) -> Process:
            group = f"{self._dumps}/{new_id()}"
            cgroups.create(group)
            try:
                argv = command.argv(CRIU_SOCKET_FD)
                spec = CriuBeside(
                    pid=init_pid, run=self._run, cgroup=group, is_urgent=is_urgent, argv=argv, env=command.env
                )
                return self._start(spec, command, group)
            except BaseException:
                cgroups.end(group)
                raise

        return spawn

    def template(self, hard_limits: dict[str, int], plan_fd: int, images_fd: int) -> Spawn:
        """Return the function that starts a template (templates.py). `plan_fd`, `images_fd`: see CriuTemplate."""

        def spawn(command: CriuCommand) -> Process:
            group = f"{self._dumps}/template-{new_id()}"
            cgroups.create(group)
            try:
                argv = [*command.argv(CRIU_SOCKET_FD), str(TEMPLATE_PLAN_FD), str(TEMPLATE_IMAGES_FD)]
                spec = CriuTemplate(run=self._run, cgroup=group, argv=argv, env=command.env, hard_limits=hard_limits)
                return self._start(spec, command, group, (plan_fd, images_fd))
            except BaseException:
                cgroups.end(group)
                raise

        return spawn

    def into(
        self,
        start: StartSpec,
        hard_limits: dict[str, int],
        *,
        no_host_network: bool = False,
        template_fd: int | None = None,
    ) -> Spawn:
        """Return the function that starts a CRIU to restore a session. `start`: the mounts and the cgroup of the
        restored session. `hard_limits`: the hard resource limits of the captured processes. `no_host_network`: see
        CriuInto. `template_fd`: the socket of the template that forks the CRIU.
        """

        def spawn(command: CriuCommand) -> Process:
            argv = command.argv(CRIU_SOCKET_FD)
            spec = CriuInto(
                mounts=start,
                run=self._run,
                argv=argv,
                env=command.env,
                hard_limits=hard_limits,
                no_host_network=no_host_network,
                from_template=template_fd is not None,
            )
            try:
                return self._start(spec, command, more=() if template_fd is None else (template_fd,))
            except OSError as error:
                raise externals.misplaced(error) or error from error

        return spawn

    def _start(
        self,
        spec: CriuBeside | CriuInto | CriuTemplate,
        command: CriuCommand,
        group: str = "",
        more: tuple[int, ...] = (),
    ) -> Process:
        starting = self._launcher.carry_out(spec, (command.socket_fd, command.words_fd, *more))
        return LaunchedCriu(asyncio.run_coroutine_threadsafe(starting, self._loop).result(), group)


def furnish(start: StartSpec, on_network: Callable[[int], object] = bool) -> OnNotice:
    """Return the listener for CRIU's notices during a restore with the mounts of `start`.

    Before a process of the session runs, the listener sets up the new network namespace, calls `on_network` with a
    descriptor of it, and checks the mounts. It raises Misplaced if a mount is missing or differs.
    """
    root = 0

    def hear(notice: Notice) -> None:
        nonlocal root
        root = notice.pid or root
        if notice.stage == "post-setup-namespaces" and start.net != "host":
            namespace = netns.open_of(root)
            try:
                netns.work_within(namespace, functools.partial(furnish_network, start.net))
                on_network(namespace)
            finally:
                os.close(namespace)
        if notice.stage == "post-restore":
            try:
                externals.check_mounts(start, mounts.read_mounts(root))
            except OSError as error:
                raise externals.misplaced(error) or error from error

    return hear
