"""One live session, held open by the daemon: its terminal, its shell, its processes."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from shellwrap.ring import Ring
from waypoint.linux import cgroups, files, pidfd, procfs
from waypoint.model.records import Capture
from waypoint.model.requests import AttachRequest, ExecRequest, LogsRequest, RunRequest
from waypoint.model.streams import Inlet, Outlet
from waypoint.session import running
from waypoint.session.exec.command_line import CommandLine
from waypoint.session.exec.run_folder import RunFolder, Spare
from waypoint.session.inside.spool import Spool
from waypoint.session.launch.link import Launcher
from waypoint.session.launch.program import MASTER_FD
from waypoint.session.launch.spec import RUN_FOLDER
from waypoint.session.record import RuntimeRecord
from waypoint.session.terminal.keepsake import AHEAD, EXEC, RING, give_back_ahead
from waypoint.session.terminal.terminal import Terminal
from waypoint.session.terminal.view import Viewers
from waypoint.session.terminal.view_filter import blank

DRAIN_S = 2.0
CLIENTS_S = 10.0


class Hold(NamedTuple):
    """Descriptors: of the session's pid 1, of a duplicate of its terminal's master, of its /run/waypoint."""

    pidfd: int
    master: int
    run_dir: int


class LiveSession:
    """One session. Closes what it holds of it in `release`."""

    def __init__(self, record: RuntimeRecord, folder: Path, launcher: Launcher, hold: "Hold | None" = None) -> None:
        """`hold`: of the session that was just started, from now on this object's. None: take hold of one that runs.

        Raises OSError if that has ended meanwhile, or the ring cannot be made; nothing is left open then.
        """
        self.record = record
        self.ending: asyncio.Task[Capture | None] | None = None
        self.successor: LiveSession | None = None  # what has replaced it, in place
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._launcher = launcher
        self._streams = 0
        self._no_streams = asyncio.Event()
        self._no_streams.set()
        held = hold or _take_hold(record.init_pid)
        self._pidfd, self._run_dir = held.pidfd, held.run_dir
        path = str(folder / RING)
        try:
            ring = Ring.create(path) if hold else Ring.open(path)
        except BaseException:
            os.close(held.master)
            self._close_fds()
            raise
        self.terminal = Terminal(held.master, ring)
        self.viewers = Viewers(self.terminal)
        run_folder = RunFolder(self._run_dir, Spare("/dev/shm", lambda: _open_folder(record.init_pid, "dev/shm")))
        self.inside = Spool(run_folder)
        self.shell = CommandLine(
            self.terminal,
            folder=run_folder,
            nonce=record.nonce,
            state_path=str(folder / EXEC),
            processes=self.processes,
            ended=self.ended,
        )
        if hold is None:
            if (folder / AHEAD).exists():
                with contextlib.suppress(OSError), cgroups.frozen(record.cgroup):  # it may have ended just now
                    give_back_ahead(self.terminal, folder)
            self.shell.adopt()
        self.terminal.start()

    @classmethod
    def adopt(cls, record: RuntimeRecord, folder: Path, launcher: Launcher) -> "LiveSession":
        """Take hold of a session that another daemon started, with what that one left in `folder`."""
        return cls(record, folder, launcher)

    @property
    def branch(self) -> str:
        return self.record.row.branch

    @property
    def attached(self) -> int:
        return self.viewers.count

    def processes(self) -> list[int]:
        """Pids of all processes of the session, as the host sees them."""
        return cgroups.members(self.record.cgroup)

    def watch(self, on_end: Callable[[], object]) -> None:
        """Call `on_end` once, when the session's pid 1 has ended."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(self._pidfd)
            on_end()

        loop.add_reader(self._pidfd, ended)

    async def attach(self, request: AttachRequest, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        with self._stream():
            size = await self.viewers.attach(inlet, outlet, request.rows, request.cols)
            if not self.terminal.closed.is_set():
                return {"reason": "detached"}
            if self.successor is None:
                return {"reason": "ended", "exit": await asyncio.shield(self.ended)}
        with contextlib.suppress(ConnectionError):  # told again when the successor is shown
            await outlet.output(blank())  # the successor's past is another one
        return await self.successor.attach(AttachRequest(rows=size[0], cols=size[1]), inlet, outlet)

    async def execute(self, request: ExecRequest, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        with self._stream():
            return await self.shell.execute(request, inlet, outlet)

    async def run(self, request: RunRequest, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        record = self.record
        host = running.Host(record.init_pid, record.cgroup, record.row.setting, record.env, self._run_dir)
        with self._stream():
            return await running.run(host, self._launcher, request, inlet, outlet)

    async def logs(self, request: LogsRequest, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        with self._stream():
            await self.viewers.logs(inlet, outlet, follow=request.follow)
            return {"reason": "ended"}

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        self._streams += 1
        self._no_streams.clear()
        try:
            yield
        finally:
            self._streams -= 1
            if not self._streams:
                self._no_streams.set()

    async def wait_drained(self) -> None:
        """After the last process of the session has ended: return once what its terminal still held is in the ring."""
        with contextlib.suppress(TimeoutError):  # a client that takes its output slowly: it has CLIENTS_S afterwards
            await asyncio.wait_for(self.terminal.closed.wait(), DRAIN_S)

    async def close(self, status: int | None) -> None:
        """The session has ended with `status` (None: unknown): tell those who wait, give them CLIENTS_S to take the
        rest, let go.
        """
        if not self.ended.done():
            self.ended.set_result(status)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._no_streams.wait(), CLIENTS_S)
        self.release()

    def release(self) -> None:
        """Let go of the session, which goes on if it lives."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
        self.inside.close()
        self.shell.release()
        self.terminal.close()
        self._close_fds()

    def _close_fds(self) -> None:
        for fd in (self._pidfd, self._run_dir):
            if fd >= 0:
                os.close(fd)
        self._pidfd = self._run_dir = -1


def _take_hold(pid: int) -> Hold:
    """Of a session that runs. Raises OSError if it does not."""
    with contextlib.ExitStack() as undo:
        held: list[int] = []
        for take in (pidfd.open, lambda pid: pidfd.take(pid, MASTER_FD), _open_run_folder):
            held.append(take(pid))
            undo.callback(os.close, held[-1])
        undo.pop_all()
    return Hold(*held)


def _open_run_folder(pid: int) -> int:
    return _open_folder(pid, RUN_FOLDER)


def _open_folder(pid: int, path: str) -> int:
    """A folder of the session. No link in the session is followed: it would lead out of it."""
    root = procfs.open_root(pid)
    try:
        return files.open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(root)
