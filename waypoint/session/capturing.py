"""Capturing a live session, which goes on: from what the daemon holds of it to a record."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from waypoint.capture.taking import Means, Taken, take
from waypoint.linux import cgroups, filesystem, machine, procfs
from waypoint.model.errors import Failed, HostLacks
from waypoint.model.ids import new_id
from waypoint.model.records import (
    Capture,
    FilesLayer,
    Layers,
    Machine,
    ProcessesLayer,
    Reason,
    ShellLayer,
    TerminalLayer,
    Tier,
)
from waypoint.processes import nested_shells, ports
from waypoint.processes.criu_find import CriuProgram
from waypoint.processes.criu_options import DumpOptions
from waypoint.processes.criu_rpc import Criu
from waypoint.processes.criu_worker import Spawn
from waypoint.session.ground.start_plan import SHM
from waypoint.session.home_ground import HomeGround
from waypoint.session.launch.criu_process import spawn_with
from waypoint.session.launch.externals import name_externals
from waypoint.session.launch.spec import CriuBeside
from waypoint.session.live import LiveSession
from waypoint.session.shell.asked import Asked, ask_state, still_holds
from waypoint.session.terminal import keepsake


class LiveSubject:
    """Implements `waypoint.capture.pause.Subject`. Made in the event loop, used in a thread."""

    def __init__(self, live: LiveSession, session_folder: Path, folder: Path, shm: Path, asked: Asked | None) -> None:
        """`folder`, `shm`: where copies of the terminal and of the shared memory go. `asked`: of the shell."""
        self._live = live
        self._session_folder = session_folder
        self._folder = folder
        self._shm = shm
        self._loop = asyncio.get_running_loop()
        self._asked = asked
        self.shell: ShellLayer | None = None
        self.terminal: TerminalLayer | None = None
        self.programs: list[str] = []
        self.clock = 0.0
        self._took_ahead = False

    @property
    def tree(self) -> str:
        return self._live.record.row.tree

    @property
    def cgroup(self) -> str:
        return self._live.record.cgroup

    def stand_still(self) -> None:
        """The copies are made in the loop while the caller goes on; `copy_memory` waits for them."""
        drained: Future[None] = Future()
        self._aside = self._begin_in_loop(lambda: self._put_terminal_aside(drained))
        wait((drained, self._aside), return_when=FIRST_COMPLETED)
        if not drained.done():
            self._aside.result()  # what went wrong

    def copy_memory(self) -> None:
        self._aside.result()
        if self._took_ahead:
            self._begin_in_loop(self._give_back_ahead).result()
        shm = f"{procfs.root_path(self._live.record.init_pid)}{SHM}"
        if os.listdir(shm):
            filesystem.copy_tree(shm, self._shm)

    def go_on(self) -> None:
        self._begin_in_loop(self._go_on).result()

    def _go_on(self) -> None:
        try:
            self._give_back_ahead()  # if the dump has failed
        finally:
            self._live.terminal.go_on()

    def _give_back_ahead(self) -> None:
        keepsake.give_back_ahead(self._live.terminal, self._session_folder)

    def _put_terminal_aside(self, drained: "Future[None]") -> None:
        """In one go: nobody else in the loop may act on what was drained before there is a copy of how things were."""
        terminal = self._live.terminal
        terminal.stand_still()
        terminal.reader.drain()
        self._took_ahead = keepsake.take_ahead(terminal, self._session_folder)
        self.shell = self._asked.layer if self._asked and still_holds(self._live.shell, self._asked) else None
        self.clock = time.clock_gettime(time.CLOCK_BOOTTIME)
        drained.set_result(None)
        rows, cols = terminal.window.size
        size = keepsake.put_aside(terminal, self._session_folder, self._folder)
        end = terminal.ring.end + len(terminal.reader.spill)
        self.terminal = TerminalLayer(size_bytes=size, rows=rows, cols=cols, end=end)
        self.programs = sorted(procfs.stat(pid).name for pid in self._live.processes())

    def _begin_in_loop(self, work: Callable[[], None]) -> "Future[None]":
        """Everything about a terminal happens in the event loop."""

        async def do() -> None:
            work()

        return asyncio.run_coroutine_threadsafe(do(), self._loop)


async def capture(
    ground: HomeGround, live: LiveSession, *, tier: Tier | None, reason: Reason, message: str = "", hold: bool = False
) -> Capture:
    """Take a capture of the session; it is on no record yet. `tier` None: the best that can be had.

    `hold`: leave the session frozen, for somebody who will end it. Raises as `taking.take`, and Failed for what the
    machine refuses (disk full); then it goes on, too.
    """
    record = live.record
    capture_id = new_id()
    finding = asyncio.to_thread(_find_criu, ground.find_criu if tier != "files" else None)
    looking = asyncio.to_thread(_look_around, live)
    (program, why_not), asked, (nested, held) = await asyncio.gather(finding, ask_state(live.shell), looking)
    criu = Criu(program.path, _spawn_beside(ground, record.init_pid)) if program else None
    means = Means(ground.pool, ground.hot, criu, why_not)
    session_folder = ground.places.sessions / record.row.session
    subject = LiveSubject(live, session_folder, ground.hot.terminal(capture_id), ground.hot.shm(capture_id), asked)
    dump = DumpOptions(
        tree_pid=record.init_pid,
        images_fd=-1,
        work_fd=-1,
        externals=name_externals(record.outside, "").dump,
        own_network=record.row.setting.net != "host",
    )
    try:
        taken = await asyncio.to_thread(take, means, subject, dump, capture_id, tier, hold=hold)
    except OSError as error:
        said = f"{error.strerror} {os.fsdecode(error.filename or '')}".rstrip()
        next_step = "free some disk space in the home, and try again"
        raise Failed("capture", f"branch {live.branch}", said, next_step) from error
    return Capture(
        id=capture_id,
        branch=record.row.branch,
        parents=[],
        created=time.time(),
        tier=taken.tier,
        layers=Layers(
            files=FilesLayer(tree=capture_id),
            processes=_processes(live, taken, subject, program, held) if program and taken.tier == "live" else None,
            shell=subject.shell,
            terminal=subject.terminal,
        ),
        setting=record.row.setting,
        reason=reason,
        message=message,
        paused_ms=taken.paused_ms,
        degraded=taken.degraded + (_told(nested, held) if taken.tier == "live" else []),
        machine=describe_machine(),
        clock=subject.clock,
    )


def _spawn_beside(ground: HomeGround, pid: int) -> Spawn:
    run, group = str(ground.places.kit.criu_run), ground.places.dumps
    return spawn_with(ground.launcher, lambda argv, env: CriuBeside(pid=pid, run=run, cgroup=group, argv=argv, env=env))


def let_go_on(live: LiveSession) -> None:
    """End the standstill of a session that was captured with `hold`."""
    cgroups.thaw(live.record.cgroup)
    live.terminal.go_on()


def describe_machine() -> Machine:
    cpu = machine.cpu()
    return Machine(
        kernel=machine.kernel_release(),
        architecture=machine.architecture(),
        cpu=cpu.model,
        cpu_features=cpu.features,
        boot_id=procfs.boot_id(),
    )


def _look_around(live: LiveSession) -> tuple[list[str], list[str]]:
    """Shells within its shell, and the host's ports that it has: before it stands still."""
    processes = live.processes()
    shares = live.record.row.setting.net == "host"
    return nested_shells.find(processes), ports.held_by(processes) if shares else []


def _processes(
    live: LiveSession, taken: Taken, subject: LiveSubject, program: CriuProgram, held: list[str]
) -> ProcessesLayer:
    record = live.record
    return ProcessesLayer(
        size_bytes=taken.image_bytes,
        count=len(subject.programs),
        programs=subject.programs,
        frozen_us=taken.frozen_us,
        criu=program.version,
        overlays=record.overlays,
        outside=record.outside,
        proc_readonly=record.proc_readonly,
        env=record.env,
        nonce=record.nonce,
        ports=held,
    )


def _told(nested: list[str], held: list[str]) -> list[str]:
    said = "a shell within the shell: once brought back it has no ^C and no jobs; leave it and start it again there"
    told = [f"{name}: {said}" for name in nested]
    if held:
        told.append(f"{', '.join(held)} of the host's network: cannot be copied, nor restored while something has them")
    return told


def _find_criu(find: Callable[[], CriuProgram] | None) -> tuple[CriuProgram | None, str]:
    try:
        return find() if find is not None else None, ""
    except HostLacks as error:
        return None, error.said
