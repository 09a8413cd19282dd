"""A real shell with our hooks on a real terminal, without a session around it, and the part of the daemon that drives
it.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import termios
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from shellwrap.ring import Ring
from tests.terminals import open_pair
from waypoint.capture.layers.shell import LAST
from waypoint.linux.tasks import pidfd, procfs
from waypoint.linux.tty import terminals
from waypoint.model.requests import ExecRequest
from waypoint.model.streams import Frame
from waypoint.terminal.exec.command_line import CommandLine
from waypoint.terminal.hooks.run_folder import RunFolder, Spare
from waypoint.terminal.shell.renewal import renew
from waypoint.terminal.terminal import Terminal
from waypoint.terminal.view import Viewers

NONCE = "0123456789abcdef"


def _no_spare() -> int:
    raise OSError(errno.ENOSPC, "no room aside either")


NO_SPARE = Spare("/nowhere", _no_spare)
HOOKS = Path(__file__).resolve().parents[2] / "shellwrap"


class Ran(NamedTuple):
    """What an exec's client got."""

    exit: int
    output: bytes
    by: str
    ended: bool
    said: str


class Client:
    """The client's side of a stream: an Inlet that a test fills, and an Outlet that keeps what it gets."""

    def __init__(self) -> None:
        self.output_bytes = bytearray()
        self.notes: list[dict[str, object]] = []
        self.taken = asyncio.Event()
        self.may_take = asyncio.Event()
        self.may_take.set()
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._gone = False

    def send(self, kind: str, payload: bytes = b"") -> None:
        self._frames.put_nowait(Frame(kind, payload))

    def leave(self) -> None:
        self._gone = True
        self.may_take.set()
        self._frames.put_nowait(None)

    async def receive(self) -> Frame | None:
        return None if self._gone and self._frames.empty() else await self._frames.get()

    async def output(self, data: bytes | memoryview) -> None:
        await self.may_take.wait()
        if self._gone:
            raise ConnectionResetError
        self.output_bytes += data
        self.taken.set()

    async def errors(self, data: bytes | memoryview) -> None:
        raise AssertionError(f"a terminal has no stderr of its own: {bytes(data)!r}")

    async def note(self, facts: dict[str, object]) -> None:
        self.notes.append(facts)

    @property
    def exec_id(self) -> str:
        return str(self.notes[0]["exec"])

    async def wait_output(self, text: bytes) -> None:
        """Return when `text` was among the output."""
        while text not in self.output_bytes:
            self.taken.clear()
            await self.taken.wait()


class Daemon:
    """What a daemon has of one session. `die` leaves everything as it is at that moment."""

    def __init__(self, stage: "Stage") -> None:
        path = str(stage.folder / "ring")
        ring = Ring.open(path) if os.path.exists(path) else Ring.create(path, stage.ring_size)
        self.terminal = Terminal(os.dup(stage.master), ring)
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.run_dir = os.open(stage.run, os.O_RDONLY | os.O_DIRECTORY)
        self.line = CommandLine(
            self.terminal,
            RunFolder(self.run_dir, stage.spare),
            NONCE,
            str(stage.folder / "exec.json"),
            stage.processes,
            self.ended,
        )
        self.line.renew = lambda: renew(self.line, "main")
        self.line.adopt()
        self.viewers = Viewers(self.terminal)
        self.terminal.start()

    def die(self) -> None:
        if self.run_dir >= 0:
            self.line.release()
            self.terminal.close()
            os.close(self.run_dir)
            self.run_dir = -1


class Stage:
    """Call `open` in the test's event loop. `rc`: lines for the user's own rc file."""

    def __init__(self, folder: Path, shell: str, stack: ExitStack) -> None:
        self.folder = folder
        self.shell = shell
        self.run = folder / "run"
        self.home = folder / "home"
        self.ring_size = 1 << 21
        self.spare = NO_SPARE
        self.master = -1
        self.pid = 0
        self.new_shell = False  # whether the last exec has ended the shell, and a new one has taken its place
        self.state_lost = False  # whether that one has not got the state of the one before
        self._stack = stack
        self._fresh = 0

    async def open(self, rc: str = "", options: tuple[str, ...] = (), *, wait: bool = True) -> "Daemon":
        """Start the shell, and a daemon that drives it; return when the first prompt is there (if `wait`)."""
        self.run.mkdir(mode=0o700, exist_ok=True)
        self.home.mkdir(exist_ok=True)
        (self.run / "nonce").write_text(f"{NONCE}\n")
        for name in LAST:
            (self.run / name).touch()
        (self.home / f".{self.shell}rc").write_text(f"PS1='P> '\n{rc}\n")
        self._start(options)
        self.daemon = Daemon(self)
        self._stack.callback(self.daemon.die)
        self._watch_end()
        if wait:
            assert await self.daemon.line.wait_ready(20)
        return self.daemon

    async def fresh(self, rc: str = "") -> "Stage":
        """Another open shell of the same kind, in a folder of its own. For tests with a shell per row."""
        self._fresh += 1
        folder = self.folder / f"fresh{self._fresh}"
        folder.mkdir()
        stage = Stage(folder, self.shell, self._stack)
        await stage.open(rc)
        return stage

    async def next_daemon(self, client_task: "asyncio.Task[Ran] | None" = None) -> "Daemon":
        """Let the daemon die, and start another one. `client_task`, which `begin` gave, has ended on return."""
        self.daemon.die()
        self.daemon = Daemon(self)
        self._stack.callback(self.daemon.die)
        if client_task:
            with contextlib.suppress(asyncio.CancelledError):
                await client_task
        return self.daemon

    async def exec(self, text: str, client: Client | None = None, **fields: object) -> Ran:
        """Run a command line as a client would."""
        client = client or Client()
        request = ExecRequest(text=text, **fields)  # type: ignore[arg-type]  # the fields' types are the tests' own business
        end = await self.daemon.line.execute(request, client, client)
        self.new_shell, self.state_lost = end["new_shell"] is True, end["state_lost"] is True
        return Ran(
            int(str(end["exit"])), bytes(client.output_bytes), str(end["by"]), end["ended"] is True, str(end["said"])
        )

    async def begin(
        self,
        text: str,
        shows: bytes = b"",
        client: Client | None = None,
        *,
        programs: int | None = None,
        **fields: object,
    ) -> "tuple[asyncio.Task[Ran], Client]":
        """Begin a command line; return when it has printed `shows` and has so many `programs` in the foreground."""
        client = client or Client()
        task = asyncio.create_task(self.exec(text, client, **fields))
        while not client.notes and not task.done():
            await asyncio.sleep(0)
        await client.wait_output(shows)
        if programs is not None:
            await self.wait_foreground(programs)
        return task, client

    async def resume(self, ident: str, offset: int) -> Ran:
        return await self.exec("", resume=ident, offset=offset)

    async def type(self, text: bytes) -> None:
        """Type as an attached person."""
        await self.daemon.terminal.keyboard.type(text)

    async def wait_printed(self, text: bytes, after: int = 0) -> None:
        """Return when the terminal has printed `text` (after so many bytes)."""
        terminal = self.daemon.terminal
        while text not in self.printed(after):
            await terminal.wait_more(terminal.ring.end)

    async def wait_foreground(self, programs: int) -> None:
        """Return when so many processes that run another program than the shell are in the terminal's foreground."""
        while len(_foreground(self)) != programs:
            await asyncio.sleep(0)  # the kernel gives no event for it; others get their turn

    def printed(self, after: int = 0) -> bytes:
        ring = self.daemon.terminal.ring
        return ring.copy(max(after, ring.start), ring.end)

    def processes(self) -> list[int]:
        """The shell and everything below it."""
        found = [self.pid] if self.pid else []
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                found += procfs.children(pid)
        return found

    def _start(self, options: tuple[str, ...]) -> None:
        self.master, slave = open_pair()
        self._stack.callback(os.close, self.master)
        path = shutil.which(self.shell)
        assert path, f"{self.shell} is not installed"
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TERM": "xterm", "LANG": "C.UTF-8"}
        env["WAYPOINT_RUN"] = str(self.run)
        if self.shell == "zsh":
            env["ZDOTDIR"] = str(HOOKS / "zdotdir")
        rc = ["--rcfile", str(HOOKS / "hooks.bash")] if self.shell == "bash" else []
        argv = ["/bin/sh", str(HOOKS / "init.sh"), path, *rc, *options, "-i"]
        self.pid = os.fork()
        if self.pid == 0:
            _become(argv, env, slave, str(self.home))
        os.close(slave)
        self._stack.callback(self._kill, pidfd.open(self.pid))

    def _watch_end(self) -> None:
        fd = pidfd.open(self.pid)
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(fd)
            status = self.run / "exit"
            if not self.daemon.ended.done():
                self.daemon.ended.set_result(int(status.read_text()) if status.exists() else None)

        loop.add_reader(fd, ended)
        self._stack.callback(os.close, fd)

    def _kill(self, fd: int) -> None:
        for pid in reversed(self.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(fd)


def _foreground(stage: Stage) -> list[int]:
    group = terminals.foreground_group(stage.master)
    found = []
    for pid in stage.processes():
        with contextlib.suppress(ProcessLookupError):
            if procfs.stat(pid).group == group and procfs.stat(pid).name != stage.shell:
                found.append(pid)
    return found


def _become(argv: list[str], env: dict[str, str], slave: int, cwd: str) -> None:
    try:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for fd in range(3):
            os.dup2(slave, fd)
        os.closerange(3, 1 << 10)
        os.chdir(cwd)
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        os.execve(argv[0], argv, env)
    finally:
        os._exit(127)
