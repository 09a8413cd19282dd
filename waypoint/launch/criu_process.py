"""Starting CRIU through the launcher: the implementation of `Spawn` (processes/criu/worker.py) for sessions."""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import signal
import socket
from collections.abc import Callable

import msgspec

from waypoint.launch import externals
from waypoint.launch.launcher_link import Launcher, Started, died, fds_for_ids
from waypoint.launch.packets import MAX_REQUEST_BYTES
from waypoint.launch.spec import (
    CRIU_SOCKET_FD,
    TEMPLATE_IMAGES_FD,
    TEMPLATE_PLAN_FD,
    CriuAhead,
    CriuBeside,
    CriuInto,
    CriuTemplate,
    LaunchAnswer,
    MountOrder,
    StartSpec,
)
from waypoint.launch.start import furnish_network
from waypoint.linux.net import netns
from waypoint.linux.storage import mounts
from waypoint.linux.tasks import cgroups, pidfd
from waypoint.model.ids import new_id
from waypoint.processes.criu.options import Notice, OnNotice
from waypoint.processes.criu.rpc import RESTORE_ENVIRONMENT
from waypoint.processes.criu.worker import Channel, CriuCommand, Process, Spawn


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


class AheadCriu(LaunchedCriu):
    """A CRIU that was started by `CriuSpawner.begin`, with the mounts of its session."""

    def __init__(self, started: Started, channel: Channel) -> None:
        super().__init__(started, "")
        self._channel = channel

    def take_channel(self) -> Channel:
        return self._channel


class _Beginning:
    """A CRIU that is being started in the cgroup of a session whose mounts are not known yet."""

    def __init__(self, launcher: Launcher, spec: CriuAhead, loop: asyncio.AbstractEventLoop) -> None:
        """Called in a thread while the event loop `loop` runs. Returns at once."""
        self.spec = spec
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders, waiting = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours, os.memfd_create("criu-words"))
        fds = (theirs.fileno(), self._channel.words_fd, waiting.fileno())
        self._starting = asyncio.run_coroutine_threadsafe(launcher.carry_out(spec, fds), loop)

        def started(_: object) -> None:
            theirs.close()
            waiting.close()

        self._starting.add_done_callback(started)

    def mount(self, order: MountOrder) -> AheadCriu:
        """Wait until CRIU is started, and have the mounts of `order` made. Raises OSError, LauncherDied; CRIU has ended
        then, or ends.
        """
        try:
            started = self._starting.result()
            try:
                socket.send_fds(self._orders, [msgspec.json.encode(order)], fds_for_ids(order.mounts))
                text = self._orders.recv(MAX_REQUEST_BYTES)
            except (BrokenPipeError, ConnectionResetError):  # the task was killed
                text = b""
            if not text:
                raise died()
            answer = msgspec.json.decode(text, type=LaunchAnswer)
            if not answer.pid:
                raise OSError(answer.errno, answer.error, answer.path)
        except BaseException:
            self.close()
            raise
        self._orders.close()
        return AheadCriu(started, self._channel)

    def close(self) -> None:
        """End CRIU, which is not used. Returns at once."""
        self._starting.add_done_callback(self._end)

    def _end(self, starting: concurrent.futures.Future[Started]) -> None:
        self._orders.close()
        self._channel.socket.close()
        os.close(self._channel.words_fd)
        if not starting.cancelled() and starting.exception() is None:
            for handle in starting.result().handles:
                with contextlib.suppress(ProcessLookupError):
                    pidfd.send_signal(handle, signal.SIGKILL)
                os.close(handle)


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
        self._begun: dict[str, _Beginning] = {}  # by cgroup

    def begin(self, group: str, program: str) -> None:
        """Start a CRIU to restore a session in the cgroup `group`, while the caller prepares the session's files. The
        function that `into` returns for this cgroup uses it. The caller must call `forget` before it removes the
        cgroup. Returns at once.
        """
        argv = CriuCommand(program, {}, -1, -1).argv(CRIU_SOCKET_FD)
        spec = CriuAhead(cgroup=group, run=self._run, argv=argv, env=RESTORE_ENVIRONMENT)
        self._begun[group] = _Beginning(self._launcher, spec, self._loop)

    def forget(self, group: str) -> None:
        """End the CRIU that was begun in the cgroup `group`, unless it was used."""
        if (begun := self._begun.pop(group, None)) is not None:
            begun.close()

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
            begun = self._begun.pop(start.cgroup, None)
            if begun is not None:
                assert (begun.spec.argv, begun.spec.env) == (argv, command.env)
                try:
                    return begun.mount(MountOrder(mounts=start, hard_limits=hard_limits))
                except OSError as error:
                    raise externals.misplaced(error) or error from error
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
