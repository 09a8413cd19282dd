"""A CRIU that the launcher starts for a thread of the daemon: the `spawn` of waypoint/processes/criu_worker.py."""

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable

from waypoint.linux import netns, pidfd
from waypoint.processes.criu_options import Notice, OnNotice
from waypoint.processes.criu_worker import Command, Process, Spawn
from waypoint.session.launch.link import Launcher, Started
from waypoint.session.launch.spec import CRIU_SOCKET_FD, CriuBeside, CriuInto
from waypoint.session.launch.start import furnish_network

MakeSpec = Callable[[list[str], dict[str, str]], CriuBeside | CriuInto]
"""From arguments and environment to what the launcher is told."""


class LaunchedCriu:
    """Nobody's child: it is known by its descriptor."""

    def __init__(self, started: Started) -> None:
        self.pid = started.pid
        self._pidfd = started.handles[0]

    def wait(self) -> int:
        """Until it has ended. Its status is the launcher's: 0."""
        if self._pidfd >= 0:
            select.select([self._pidfd], [], [])
            os.close(self._pidfd)
            self._pidfd = -1
        return 0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                pidfd.send_signal(self._pidfd, signal.SIGKILL)


def spawn_with(launcher: Launcher, make_spec: MakeSpec) -> Spawn:
    """To be made in the event loop, and called in a thread while the loop runs."""
    loop = asyncio.get_running_loop()

    def spawn(command: Command) -> Process:
        spec = make_spec(command.argv(CRIU_SOCKET_FD), command.env)
        starting = launcher.carry_out(spec, (command.socket_fd, command.words_fd))
        return LaunchedCriu(asyncio.run_coroutine_threadsafe(starting, loop).result())

    return spawn


def furnish() -> OnNotice:
    """For a restore with an empty network: what is in it, before anything of the session runs there."""
    root = 0

    def hear(notice: Notice) -> None:
        nonlocal root
        root = notice.pid or root
        if notice.stage == "post-setup-namespaces":
            netns.work_in(root, furnish_network)

    return hear
