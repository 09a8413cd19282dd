"""The daemon's watch over its supervisor: if the supervisor dies, the daemon starts a new one and hands it the
listening socket.
"""

import asyncio
import os

from waypoint.daemon.siblings import Patience, spawn_supervisor
from waypoint.linux.tasks import pidfd
from waypoint.service.background.bugs import LOG


class SupervisorWatch:
    """Watches a pidfd of the supervisor in the event loop; costs nothing while the supervisor lives."""

    def __init__(self, home: str, script: str, env: dict[str, str], *, listen_fd: int, mounts_fd: int) -> None:
        """`script`: the path from which the new supervisor starts later daemons. `mounts_fd`: the mount namespace in
        which the new supervisor runs. Both descriptors stay the caller's. To be made in a running event loop.
        """
        self._home = home
        self._script = script
        self._listen_fd = listen_fd
        self._mounts_fd = mounts_fd
        self._env = env
        self._loop = asyncio.get_running_loop()
        self._patience = Patience()
        self._self_fd = pidfd.open(os.getpid())
        self._supervisor_fd = -1
        self._since = 0.0
        self._off = False

    def watch(self, supervisor_fd: int) -> None:
        """Watch the supervisor with pidfd `supervisor_fd`, which this object closes; start a new one when it dies."""
        self._supervisor_fd = supervisor_fd
        self._since = self._loop.time()
        self._loop.add_reader(supervisor_fd, self._replace)

    def stop(self) -> None:
        """Stop watching: the daemon is about to stop, and its supervisor may end then."""
        self._off = True
        if self._supervisor_fd >= 0:
            self._loop.remove_reader(self._supervisor_fd)

    def _replace(self) -> None:
        self._loop.remove_reader(self._supervisor_fd)
        os.close(self._supervisor_fd)
        self._supervisor_fd = -1
        LOG.warning("the supervisor has died")
        self._start_later()

    def _start_later(self) -> None:
        delay_s = self._patience.delay_after(self._loop.time() - self._since)
        if delay_s is None:
            LOG.error("several supervisors died soon after their start; the daemon continues without a supervisor")
            return
        self._loop.call_later(delay_s, self._start)

    def _start(self) -> None:
        if self._off:
            return
        self._since = self._loop.time()
        ready_fd, ready_write = os.pipe()
        try:
            child = spawn_supervisor(
                self._home,
                daemon=(self._script, self._self_fd),
                listen_fd=self._listen_fd,
                mounts_fd=self._mounts_fd,
                ready_fd=ready_write,
                env=self._env,
            )
        except OSError as error:
            os.close(ready_fd)
            LOG.error("cannot start a supervisor: %s", error)
            self._start_later()
        else:
            self._loop.add_reader(ready_fd, self._take_report, ready_fd, child)
        finally:
            os.close(ready_write)

    def _take_report(self, ready_fd: int, child: int) -> None:
        """Read the new supervisor's report `ready PID`; the end of the pipe means that it has not started."""
        self._loop.remove_reader(ready_fd)
        words = os.read(ready_fd, 4096).decode(errors="replace").strip()
        os.close(ready_fd)
        os.waitpid(child, 0)  # does not block: the supervisor is a fork of the child, which has ended by now
        verb, _, pid = words.partition(" ")
        try:
            if verb != "ready" or self._off:
                raise ProcessLookupError(words)
            supervisor_fd = pidfd.open(int(pid))
        except (ProcessLookupError, ValueError):
            LOG.error("the new supervisor has ended: %s", words)
            self._start_later()
        else:
            LOG.info("supervisor %s watches this daemon", pid)
            self.watch(supervisor_fd)
