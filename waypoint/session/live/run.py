"""`run`: a separate process in a live session, its streams and its exit status.

The process is a child of the session's pid 1 and in the session's cgroup, so a checkpoint captures it. Its stdin,
stdout and stderr are pipes to the daemon, or a terminal of its own, both ends of which are in the session. The wrapper
`child.sh` finds the program by the session's PATH, executes it, and writes its exit status to a file: 127 if there is
no such program, 126 if it cannot be executed.
"""

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from waypoint.capture.left_status import read_status
from waypoint.launch.launcher_link import Launcher
from waypoint.launch.spec import START_S, EnterSpec, Identity
from waypoint.linux.storage import beneath
from waypoint.linux.tasks import cgroups, pidfd, procfs, signals
from waypoint.linux.tty import ptys
from waypoint.model.errors import Failed, WaypointError, as_text, cleaned
from waypoint.model.ids import new_id
from waypoint.model.paths import OWN_FOLDER, RUN_FOLDER
from waypoint.model.records import IdMap, Seccomp, Setting
from waypoint.model.requests import RunRequest
from waypoint.model.streams import Inlet, Outlet
from waypoint.terminal.exec.ending import stop_command, wait_moment
from waypoint.terminal.hooks.run_folder import RunFolder, Spare

_CHUNK = 1 << 18
_ASIDE = ".waypoint-"  # child.sh contains the same prefix
_TIMEOUT = 124
_CANNOT = 125
_NO_PROGRAM = 127
_FIRST = asyncio.FIRST_COMPLETED


class Host(NamedTuple):
    """The session in which the process runs. `left`: where the wrapper writes the exit status. `moving`: cleared while
    the session is frozen for a capture.
    """

    init_pid: int
    cgroup: str
    setting: Setting
    env: dict[str, str]
    ids: IdMap
    seccomp: Seccomp
    left: "StatusPlace"
    moving: asyncio.Event


class StatusPlace(NamedTuple):
    """A folder of a session for exit statuses. `fd`: its descriptor, which the caller closes. `path`: as the session
    sees it. `is_there`: whether the session still has this folder there. `prefix`: of the file names. `spare`: a folder
    in memory for a full disk; there _ASIDE precedes the file name.
    """

    fd: int
    path: str
    is_there: Callable[[], bool]
    spare: Spare
    prefix: str = "run."

    def take(self, name: str) -> int | None:
        """Read and remove the status in the file `name`, if there is one."""
        status = _take(self.fd, name)
        if status is None:
            with contextlib.suppress(OSError):  # the session has replaced the folder, or has ended
                spare = self.spare.open()
                try:
                    return _take(spare, f"{_ASIDE}{name}")
                finally:
                    os.close(spare)
        return status


def _take(folder: int, name: str) -> int | None:
    status = read_status(folder, name)
    if status is not None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
    return status


@contextlib.contextmanager
def status_place(init_pid: int, folder: RunFolder) -> Iterator[StatusPlace]:
    """Yield the folder for the status files of a `run`. Raises OSError.

    This is the session's run folder, or the spare folder on its tmpfs if the session has replaced the run folder.
    """

    def is_there() -> bool:
        with contextlib.ExitStack() as opened:
            try:
                root = procfs.open_root(init_pid)
            except OSError:  # the session has ended
                return True
            opened.callback(os.close, root)
            with contextlib.suppress(OSError):
                found = opened.enter_context(beneath.opened(root, RUN_FOLDER))
                return os.path.sameopenfile(found, folder.fd)
        return False

    if is_there():
        yield StatusPlace(folder.fd, f"/{RUN_FOLDER}", is_there, folder.spare)
    else:
        spare = folder.spare.open()
        try:
            yield StatusPlace(spare, folder.spare.path, lambda: True, folder.spare, f"{_ASIDE}run.")
        finally:
            os.close(spare)


async def run_process(
    host: Host, launcher: Launcher, request: RunRequest, inlet: Inlet, outlet: Outlet, patience_s: float = START_S
) -> dict[str, object]:
    """Run `request.argv`, and pass its input and output on until it ends. Returns the payload of the `x` frame, also if
    the process cannot be started. `patience_s`: how long the start may take.

    If the client disconnects, the process goes on without its output pipes, as with `docker exec`; a process with a
    terminal of its own gets SIGHUP, since no client can ever reach that terminal again.
    """
    if not any(request.argv[:1]):
        return {"exit": _NO_PROGRAM, "by": "waypoint", "ended": False, "said": "cannot run '': no program is named"}
    process = _Process(host, request)
    try:
        await process.start(launcher, patience_s)
        return await process.serve(inlet, outlet)
    except (OSError, WaypointError) as error:
        return {"exit": _CANNOT, "by": "waypoint", "ended": False, "said": _words(error, request)}
    finally:
        process.close()


def _words(error: OSError | WaypointError, request: RunRequest) -> str:
    if isinstance(error, WaypointError):
        return str(error)
    where = f": {os.fsdecode(error.filename)}" if error.filename else ""
    return as_text(cleaned(f"cannot run {request.argv[0]!r}: {error.strerror or error}{where}"))


class _Process:
    def __init__(self, host: Host, request: RunRequest) -> None:
        self._host = host
        self._request = request
        self._file = f"{host.left.prefix}{new_id()}"
        self._pidfd = -1
        self._pid = 0
        self._input = -1
        self._outputs: list[int] = []
        self._stopped_by = ""  # the last signal that was sent at the timeout

    async def start(self, launcher: Launcher, patience_s: float) -> None:
        request, user = self._request, self._host.setting.user
        wrapper = ["/bin/sh", f"/{OWN_FOLDER}/child.sh", f"{self._host.left.path}/{self._file}", *request.argv]
        spec = EnterSpec(
            pid=self._host.init_pid,
            cgroup=self._host.cgroup,
            identity=Identity(uid=user.uid, gid=user.gid, groups=user.groups),
            argv=wrapper,
            env={**self._host.env, **request.env},
            cwd=[request.cwd] if request.cwd else [self._host.setting.cwd, user.home, "/"],
            tty=request.tty,
            rows=request.rows,
            cols=request.cols,
            seccomp=self._host.seccomp,
            patience_s=patience_s,
        )
        theirs = [] if request.tty else self._make_pipes()
        try:
            started = await launcher.carry_out(spec, tuple(theirs))
        finally:
            for fd in theirs:
                os.close(fd)
        self._pid = started.pid
        self._pidfd, *terminal = started.handles
        if terminal:
            self._input = terminal[0]
            self._outputs = [os.dup(self._input)]
            os.set_blocking(self._input, False)

    def _make_pipes(self) -> list[int]:
        """Make the pipes. Keeps the daemon's ends, returns the process's ends: stdin, stdout, stderr."""
        if self._request.stdin:
            stdin, self._input = os.pipe()
        else:
            stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        theirs = [stdin]
        for _stream in range(2):
            ours, end = os.pipe()
            self._outputs.append(ours)
            theirs.append(end)
        kept = [*self._outputs, *([self._input] if self._input >= 0 else [])]
        for fd in kept:
            os.set_blocking(fd, False)
            # Opening /dev/stdout or /dev/stderr opens the pipe anew, which only the pipe's owner may do.
            user = self._host.setting.user
            os.fchown(fd, *map(self._host.ids.outside, (user.uid, user.gid)))
        return theirs

    async def serve(self, inlet: Inlet, outlet: Outlet) -> dict[str, object]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._pidfd, _finish, ended)
        sends = (outlet.output, outlet.errors)
        tasks = [asyncio.ensure_future(self._copy(fd, sends[n], ended)) for n, fd in enumerate(self._outputs)]
        typing = asyncio.ensure_future(self._feed(inlet))
        stopping = asyncio.ensure_future(self._enforce_timeout())
        try:
            while not ended.done():
                await asyncio.wait([ended, *(t for t in (typing, *tasks) if not t.done())], return_when=_FIRST)
                if typing.done() or any(task.done() and task.exception() for task in tasks):
                    raise ConnectionError
            await asyncio.gather(*tasks)
        except ConnectionError:
            if self._request.tty:
                self._signal("HUP")
            return {"exit": _CANNOT, "by": "waypoint", "ended": False, "said": "the client has disconnected"}
        finally:
            loop.remove_reader(self._pidfd)
            for task in (typing, stopping, *tasks):
                task.cancel()
            await asyncio.gather(typing, stopping, *tasks, return_exceptions=True)
        return self._result()

    async def _copy(self, fd: int, send: object, ended: asyncio.Future[None]) -> None:
        """Send the process's output. After its end only the rest in the pipe: a child may keep the pipe
        open for ever.
        """
        assert callable(send)
        while True:
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                if ended.done():
                    return
                await _wait(fd, ended, writing=False)
                continue
            except OSError:  # EIO: the last slave of the terminal was closed
                return
            if not data:
                return
            await send(data)

    async def _feed(self, inlet: Inlet) -> None:
        while (frame := await inlet.receive()) is not None:
            if frame.kind == "i" and self._input >= 0:
                await self._type(frame.payload)
            elif frame.kind == "w" and self._request.tty and len(frame.payload) == 4:
                payload = frame.payload
                ptys.set_size(self._input, int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:], "big"))
            elif frame.kind == "k":
                self._signal(frame.payload.decode("ascii", "replace"))

    async def _type(self, data: bytes) -> None:
        if not data:
            if not self._request.tty:
                os.close(self._input)
                self._input = -1
            return
        rest = memoryview(data)
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        while rest:
            try:
                rest = rest[os.write(self._input, rest) :]
            except BlockingIOError:
                await _wait(self._input, never, writing=True)
            except (BrokenPipeError, OSError):  # nothing reads the input: drop it, as a pipe does
                return

    async def _enforce_timeout(self) -> None:
        if self._request.timeout_s is None:
            return

        async def stop(number: signal.Signals) -> None:
            self._stopped_by = number.name.removeprefix("SIG")
            self._signal(self._stopped_by)

        await wait_moment(time.monotonic() + self._request.timeout_s, self._host.moving)
        await stop_command(self._host.moving, stop)

    def _signal(self, name: str) -> None:
        number = getattr(signal, f"SIG{name}", None)
        if isinstance(number, signal.Signals) and not pidfd.has_ended(self._pidfd):
            signals.send_to_group(self._pid, number, functools.partial(cgroups.members, self._host.cgroup))

    def _result(self) -> dict[str, object]:
        left = self._host.left
        status = left.take(self._file)
        if self._stopped_by:
            said = f"the process was stopped after {self._request.timeout_s:g} s, by SIG{self._stopped_by}"
            return {"exit": _TIMEOUT, "by": "waypoint", "ended": False, "said": said, "signal": self._stopped_by}
        if status is not None:
            return {"exit": status, "by": "command", "ended": False, "said": ""}
        if left.is_there():
            said = "the process and its wrapper were killed"
            return {"exit": 128 + signal.SIGKILL, "by": "command", "ended": False, "said": said}
        name, said = repr(self._request.argv[0]), f"a program in the session has replaced {left.path}"
        lost = Failed(
            "report the exit status of", name, said, "run the command again, if it does no harm to run it twice"
        )
        return {"exit": _CANNOT, "by": "waypoint", "ended": False, "said": str(lost)}

    def close(self) -> None:
        for fd in (self._pidfd, self._input, *self._outputs):
            if fd >= 0:
                os.close(fd)
        self._outputs = []


def _finish(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def _wait(fd: int, other: asyncio.Future[None], *, writing: bool) -> None:
    """Return when `fd` is ready or `other` is done."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake(*_: object) -> None:
        if not ready.done():
            ready.set_result(None)

    (loop.add_writer if writing else loop.add_reader)(fd, wake)
    other.add_done_callback(wake)
    try:
        await ready
    finally:
        other.remove_done_callback(wake)
        (loop.remove_writer if writing else loop.remove_reader)(fd)
