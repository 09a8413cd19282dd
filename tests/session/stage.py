"""A real shell with Waypoint's hooks on a real terminal, and the part of the daemon that drives it, without the
namespaces, files and cgroup of a session.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
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
    raise OSError(errno.ENOSPC, "the spare folder is full, too")


NO_SPARE = Spare("/nowhere", _no_spare)
HOOKS = Path(__file__).resolve().parents[2] / "shellwrap"


class Ran(NamedTuple):
    """The result of an exec: exit status, output, and the fields of the `x` frame."""

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
        """Wait until the output contains `text`."""
        while text not in self.output_bytes:
            self.taken.clear()
            await self.taken.wait()


class Daemon:
    """The objects that a daemon has for one session. `die` closes them as they are, like a SIGKILL of the daemon."""

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
        self.line.can_renew = lambda: True
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
    """One shell and its terminal. Call `open` in the test's event loop to start the shell."""

    def __init__(self, folder: Path, shell: str, stack: ExitStack) -> None:
        self.folder = folder
        self.shell = shell
        self.run = folder / "run"
        self.home = folder / "home"
        self.ring_size = 1 << 21
        self.spare = NO_SPARE
        self.master = -1
        self.pid = 0
        self.new_shell = False  # the last exec ended the shell, and a new shell replaced it
        self.state_lost = False  # the new shell did not get the old shell's state
        self._stack = stack
        self._fresh = 0

    async def open(self, rc: str = "", options: tuple[str, ...] = (), *, wait: bool = True) -> "Daemon":
        """Start the shell, and a daemon that drives it. With `wait`, return when the shell has drawn its first prompt.
        `rc`: lines for the user's rc file. `options`: of the shell.
        """
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
        """Open another stage with the same kind of shell in its own folder, for tests with one shell for each row."""
        self._fresh += 1
        folder = self.folder / f"fresh{self._fresh}"
        folder.mkdir()
        stage = Stage(folder, self.shell, self._stack)
        await stage.open(rc)
        return stage

    async def next_daemon(self, client_task: "asyncio.Task[Ran] | None" = None) -> "Daemon":
        """Replace the daemon by a new one, as after a SIGKILL; wait for `client_task`, a task from `begin`, to end."""
        self.daemon.die()
        self.daemon = Daemon(self)
        self._stack.callback(self.daemon.die)
        if client_task:
            with contextlib.suppress(asyncio.CancelledError):
                await client_task
        return self.daemon

    async def exec(self, text: str, client: Client | None = None, **fields: object) -> Ran:
        """Run a command line as a client does, and return its result. `fields`: fields of ExecRequest."""
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
        """Start a command line. Return when it has printed `shows` and runs `programs` processes in the foreground."""
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
        """Type `text` as a person does who is attached to the terminal."""
        await self.daemon.terminal.keyboard.type(text)

    async def wait_printed(self, text: bytes, after: int = 0) -> None:
        """Wait until the terminal has printed `text`, not counting the first `after` bytes."""
        terminal = self.daemon.terminal
        while text not in self.printed(after):
            await terminal.wait_more(terminal.ring.end)

    async def wait_foreground(self, programs: int) -> None:
        """Wait until exactly `programs` processes other than the shell are in the terminal's foreground."""
        while len(_foreground(self)) != programs:
            await asyncio.sleep(0)  # the kernel reports no event for this, so look again at each turn of the event loop

    def printed(self, after: int = 0) -> bytes:
        ring = self.daemon.terminal.ring
        return ring.copy(max(after, ring.start), ring.end)

    def processes(self) -> list[int]:
        """The pids of the shell and all its descendants."""
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
        argv = ["/bin/sh", str(HOOKS / "first.sh"), "setsid", "--ctty", path, *rc, *options, "-i"]
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
        for fd in range(3):
            os.dup2(slave, fd)
        os.closerange(3, 1 << 10)
        os.chdir(cwd)
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        os.execve(argv[0], argv, env)
    finally:
        os._exit(127)
