"""A live session that the daemon holds open: its terminal, its shell, its processes."""

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shellwrap.ring import Ring
from waypoint.capture.layers.shell import LAST
from waypoint.launch.ground.start_plan import BRANCH_FILE, has_hooks, shell_of
from waypoint.launch.launcher_link import Launcher
from waypoint.launch.program import MASTER_FD
from waypoint.launch.spec import START_S
from waypoint.linux.storage import beneath
from waypoint.linux.tasks import cgroups, pidfd, procfs
from waypoint.linux.tty import ptys
from waypoint.model.conditions import Degradation
from waypoint.model.paths import COMMAND_FILE, INIT, OWN_FOLDER, RING_FILE, RUN_FOLDER
from waypoint.model.records import Capture
from waypoint.model.requests import AttachRequest, ExecRequest, LogsRequest, RunRequest
from waypoint.model.streams import Inlet, Outlet
from waypoint.session.live import record as records
from waypoint.session.live.record import RuntimeRecord
from waypoint.session.live.rest import Rested
from waypoint.session.live.run import Host, run_process, status_place
from waypoint.session.live.same_files import SameFiles
from waypoint.terminal.exec.command_line import FIRST_PROMPT_S, CommandLine
from waypoint.terminal.exec.command_record import begin_ring_anew
from waypoint.terminal.hooks.run_folder import RunFolder, Spare
from waypoint.terminal.inside.spool import Spool
from waypoint.terminal.shell.asked import clear_unread
from waypoint.terminal.shell.renewal import renew
from waypoint.terminal.terminal import Terminal
from waypoint.terminal.view import Viewers
from waypoint.terminal.view_filter import blank

DRAIN_S = 2.0
KILLED_DRAIN_S = 0.2  # the same for a session that another operation kept from being stopped
CLIENTS_S = 10.0
NETWORK_SETUP_S = 2.0  # how long a command waits for the network; the first session of a home must start the router

_MOST_COMMANDS, _COMMAND_LENGTH = 20, 200

_RING_LOST = b"\r\nwaypoint: the earlier output of this terminal is lost: the file that kept it was removed\r\n"

log = logging.getLogger(__name__)


class Descriptors(NamedTuple):
    """A pidfd of the session's pid 1, a duplicate of its terminal's master, its run folder."""

    pidfd: int
    master: int
    run_dir: int


class Figures(NamedTuple):
    """`resident_bytes`, `own_bytes`: the sums of the processes' resident memory, and of that which no other process
    maps. `upper_bytes`: what the session's files take on the disk; None if they cannot be measured, with the reason
    `why`; it is "" if the session ends.
    """

    memory_bytes: int
    resident_bytes: int
    own_bytes: int
    processes: int
    upper_bytes: int | None
    why: str


@dataclass
class RestartedPrograms:
    """The programs of a capture: `respawned`, started again; `offered`, typed on the shell's line; `lost`, each with
    the reason. `in_foreground`: whether the shell runs one of them in the foreground, so that it answers no request.
    """

    respawned: list[str] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    lost: list[Degradation] = field(default_factory=list)
    in_foreground: bool = False


class LiveSession:
    """`not_back`: why the processes were not restored, if they were to be, and the parts of the shell's state that were
    not restored. `restarted`: the programs of the capture from which the session started; None if they were not to be
    started again. `rested`: how the last capture has left the session; None if that is unknown. `same_files`: how the
    last restore of files has left its files; None if that is unknown. `hooks_running`: how many of the session's own
    hooks run now (service/session_hooks.py). `is_killed`: a `stop` has killed the processes, and will end the session
    when it has the branch's turn. `no_way_out`: why the private network has no connection; "" if it has one.
    `network_setup`: the task that sets up the private network; None if the session needs none. `uses`: how many
    requests have used it. `is_parking`: it ends because it is parked. `on_use`: called when a request begins to use it,
    and when the last one ends. `parks_in_s`: the seconds until it is parked if nobody uses it. `moved_ports`: its
    published ports that did not get their number on the machine. `why_no_ports`: why they are not forwarded; "" if they
    are.
    """

    not_back: Sequence[Degradation] = ()
    moved_ports: Sequence[Degradation] = ()
    why_no_ports: Callable[[], str] = str
    hooks_running: int = 0
    is_killed: bool = False
    no_way_out: Callable[[], str] = str
    network_setup: asyncio.Task[None] | None = None
    restarted: RestartedPrograms | None = None
    rested: Rested | None = None
    same_files: SameFiles | None = None
    uses: int = 0
    is_parking: bool = False
    on_use: Callable[[], object] = bool
    parks_in_s: Callable[[], float | None] = staticmethod(lambda: None)

    def __init__(
        self, record: RuntimeRecord, folder: Path, launcher: Launcher, hold: "Descriptors | None" = None
    ) -> None:
        """`folder`: the runtime folder. `hold`: the descriptors of a new session, which this object closes; None: open
        those of a session that runs already. A lost ring is replaced, and the terminal says so.

        Raises OSError if the session has ended, or if the ring cannot be made; then no descriptor stays open.
        """
        self.record = record
        self.shell_path = shell_of(record.row.setting)
        self.ending: asyncio.Task[Capture | None] | None = None
        self.capturing: asyncio.Task[object] | None = None  # the current or last capture
        self.measuring: asyncio.Task[Figures] | None = None  # the current or last measurement
        self.measured_until = 0.0  # until then on the monotonic clock, the last measurement counts
        self.commands: deque[str] = deque(maxlen=_MOST_COMMANDS)  # executed since the last point, shortened
        self.successor: LiveSession | None = None  # replaces this session on its branch
        self.kept: dict[str, object] = {}  # sent to attached clients when the session ends: where its state is kept
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._launcher = launcher
        self._streams = 0
        self._no_streams = asyncio.Event()
        self._no_streams.set()
        held = hold or _take_hold(record.init_pid)
        self._pidfd, self._run_dir = held.pidfd, held.run_dir
        path = str(folder / RING_FILE)
        try:
            ring, is_lost = (Ring.create(path), False) if hold else _open_ring(path)
        except BaseException:
            os.close(held.master)
            self._close_fds()
            raise
        self.terminal = Terminal(held.master, ring)
        if is_lost:
            self.terminal.append(_RING_LOST)
            begin_ring_anew(str(folder / COMMAND_FILE), ring.end)
        self.viewers = Viewers(self.terminal)
        run_folder = RunFolder(self._run_dir, Spare("/dev/shm", lambda: _open_folder(record.init_pid, "dev/shm")))
        self.inside = Spool(run_folder, clear_unread)
        state_path = str(folder / COMMAND_FILE)
        self.shell = CommandLine(self.terminal, run_folder, record.nonce, state_path, self.processes, self.ended)
        self.shell.can_renew, self.shell.remake_folder = self._can_renew, self._remake_run_folder
        self.shell.renew = lambda: renew(self.shell, self.branch)
        if (expected_by := record.row.started + FIRST_PROMPT_S) > time.time() and has_hooks(self.shell_path):
            self.shell.first_prompt_by = expected_by
        if hold is None:
            self.shell.adopt()
        self.terminal.start()

    @classmethod
    def adopt(cls, record: RuntimeRecord, folder: Path, launcher: Launcher) -> "LiveSession":
        """Take over a running session, with the files in `folder`. Raises OSError if it has ended."""
        return cls(record, folder, launcher)

    def _remake_run_folder(self) -> bool:
        """Make /run/waypoint again if the session has removed it. Return False if that is not possible: something else
        is in its place, or the session's user may not make it.
        """
        content = {"nonce": self.record.nonce, BRANCH_FILE: self.branch, **dict.fromkeys(LAST, "")}
        files = {name: f"{text}\n".encode() if text else b"" for name, text in content.items()}
        try:
            above = _open_folder(self.record.init_pid, os.path.dirname(RUN_FOLDER))
            try:
                self.shell.desk.folder.remake(above, files)
            finally:
                os.close(above)
            self.inside.reopen()
        except OSError as error:
            log.info("the run folder of %s cannot be made again: %s", self.branch, error)
            return False
        return True

    def _can_renew(self) -> bool:
        """Whether pid 1 starts a new shell in the place of a killed one. That of earlier versions does not. A removed
        run folder is made again, since pid 1 looks into it.
        """
        with contextlib.suppress(OSError):
            os.close(_open_folder(self.record.init_pid, OWN_FOLDER))  # has the program that starts the shell
            if not os.fstat(self._run_dir).st_nlink and not self._remake_run_folder():
                return False
            return f"/{INIT}" in procfs.command_line(self.record.init_pid)
        return False

    @property
    def branch(self) -> str:
        return self.record.row.branch

    @property
    def attached(self) -> int:
        return self.viewers.count

    @property
    def is_followed(self) -> bool:
        """Whether a client has a stream of this session open."""
        return self._streams > 0

    def touch(self) -> None:
        """Note that a request uses the session."""
        self.uses += 1
        self.on_use()

    def processes(self) -> list[int]:
        return cgroups.members(self.record.cgroup)

    def watch(self, on_end: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(self._pidfd)
            on_end()

        loop.add_reader(self._pidfd, ended)

    async def attach(
        self, request: AttachRequest, inlet: Inlet, outlet: Outlet, may_have: "Callable[[LiveSession], bool]"
    ) -> dict[str, object]:
        """Show the terminal. `may_have`: whether the client may see the session that replaces this one."""
        setting = self.record.row.setting
        shared = [bind.target for bind in setting.binds]
        base = setting.base_text
        with self._stream():
            await outlet.note(
                {"session": {"branch": self.branch, "base": base, "user": setting.user.name, "shared": shared}}
            )
            size = await self.viewers.attach(inlet, outlet, request.rows, request.cols)
            if not self.terminal.closed.is_set():
                return {"reason": "detached"}
            if self.successor is None or not may_have(self.successor):
                return {"reason": "ended", "exit": await asyncio.shield(self.ended), **self.kept}
        with contextlib.suppress(ConnectionError):  # `attach` of the successor notices that the client is gone
            await outlet.output(blank())  # the successor has another scrollback
        return await self.successor.attach(AttachRequest(rows=size[0], cols=size[1]), inlet, outlet, may_have)

    def note_command(self, text: str) -> None:
        """Keep the command for the next point, shortened."""
        self.commands.append(text[:_COMMAND_LENGTH])

    async def execute(self, request: ExecRequest, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        if request.text:
            self.note_command(request.text)
        with self._stream():
            await _wait_for_network(self)
            return await self.shell.execute(request, inlet, outlet)

    async def run(
        self, request: RunRequest, inlet: Inlet, outlet: Outlet, patience_s: float = START_S
    ) -> dict[str, object]:
        """Run a process of its own in the session. `patience_s`: how long its start may take."""
        record = self.record
        with self._stream(), status_place(record.init_pid, self.shell.desk.folder) as left:
            await _wait_for_network(self)
            setting, ids = record.row.setting, record.ids
            host = Host(
                record.init_pid, record.cgroup, setting, record.env, ids, record.seccomp, left, self.terminal.moving
            )
            return await run_process(host, self._launcher, request, inlet, outlet, patience_s)

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
                self.on_use()

    async def wait_drained(self) -> None:
        """Wait until the ring has all output of the terminal after the end of all processes, at most DRAIN_S."""
        with contextlib.suppress(TimeoutError):  # a client takes its output slowly; `close` gives it CLIENTS_S more
            await asyncio.wait_for(self.terminal.closed.wait(), KILLED_DRAIN_S if self.is_killed else DRAIN_S)

    async def close(self, status: int | None) -> None:
        """Report the end with `status` to all clients, give them CLIENTS_S to take the output, then release the
        session.
        """
        if not self.ended.done():
            self.ended.set_result(status)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._no_streams.wait(), CLIENTS_S)
        self.release()

    def restore_runtime_folder(self, sessions: Path) -> None:
        """Write the runtime folder below `sessions` again if somebody has removed it: without it the next daemon cannot
        find the session. To be called right before `release`.
        """
        folder = sessions / self.record.row.session
        if (folder / records.RECORD).exists():
            return
        records.remove_folder(sessions, folder.name)
        folder.mkdir(mode=0o700, parents=True)
        size = self.terminal.ring.save(str(folder / RING_FILE), self.terminal.reader.spill)
        with open(folder / RING_FILE, "r+b") as ring:
            os.posix_fallocate(ring.fileno(), 0, max(size, os.fstat(ring.fileno()).st_size))
        self.shell.file.move(str(folder / COMMAND_FILE))
        records.save(folder, self.record)  # last: the record tells the next daemon that the rest is complete

    def release(self) -> None:
        """Close all descriptors and files of the session. A live session continues."""
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


async def _wait_for_network(live: LiveSession) -> None:
    if live.network_setup is not None and not live.network_setup.done():
        await asyncio.wait([live.network_setup], timeout=NETWORK_SETUP_S)


def _open_ring(path: str) -> tuple[Ring, bool]:
    """Return the ring of an earlier daemon and False; if it is missing or damaged, return a new ring and True."""
    try:
        return Ring.open(path), False
    except (FileNotFoundError, ValueError) as error:
        log.error("a terminal's ring is lost and is replaced by an empty one: %s", error)
        Path(path).unlink(missing_ok=True)
        return Ring.create(path), True


def _take_hold(pid: int) -> Descriptors:
    with contextlib.ExitStack() as undo:
        held: list[int] = []
        for take in (pidfd.open, _take_master, lambda pid: _open_folder(pid, RUN_FOLDER)):
            held.append(take(pid))
            undo.callback(os.close, held[-1])
        undo.pop_all()
    return Descriptors(*held)


def _take_master(pid: int) -> int:
    """Return a duplicate of the terminal's master, which pid 1 holds as descriptor MASTER_FD."""
    try:
        master = pidfd.take(pid, MASTER_FD)
    except OSError as error:
        raise OSError(error.errno, f"its pid 1 has closed its terminal: {error.strerror}") from error
    try:
        ptys.check_master(master)
    except OSError as error:
        os.close(master)
        raise OSError(error.errno, "descriptor 3 of its pid 1 is not its terminal") from error
    return master


def _open_folder(pid: int, path: str) -> int:
    """Return a descriptor of a folder in the session. Links are not followed, as they could lead outside."""
    root = procfs.open_root(pid)
    try:
        return beneath.open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(root)
