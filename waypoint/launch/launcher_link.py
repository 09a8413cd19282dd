"""The daemon's connection to the launcher: starts it, sends it requests, and starts it again if it dies."""

import array
import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from waypoint.launch.spec import CriuInto, LaunchAnswer, LaunchSpec, StartSpec
from waypoint.linux.calls import sealed
from waypoint.linux.storage import idmapped
from waypoint.model.errors import Failed, HostLacks

QUICK_DEATH_S = 1.0
"""If the launcher dies sooner after its start than this, it is started again only at the next request, not at once."""

_ROOT = Path(__file__).resolve().parents[2]


class Started(NamedTuple):
    """A started process. `pid`: its pid as the host sees it. `handles`: descriptors that the receiver must close; the
    first is a pidfd of the process, the others are described in start.py and enter.py. `entered`: the index in `cwd` of
    the folder in which the process started.
    """

    pid: int
    handles: list[int]
    entered: int = 0


class LauncherDied(Failed):
    """The launcher died during a request. The caller may repeat the request, but processes that the first try started
    may still exist.
    """


class Launcher:
    """The launcher of one daemon. All methods must be called in the event loop. The launcher inherits the mount
    namespace of the process that calls `open`.
    """

    def __init__(self, groups: Sequence[str] = (), *, merges: bool = False) -> None:
        """`groups`, `merges`: see launcher.main."""
        self._groups = groups
        self._merges = merges
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._opened = 0.0

    def open(self) -> None:
        """Start the launcher process, if there is none. It reads its first request after about 30 ms; until then
        requests wait in the socket.
        """
        if self._control is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            paths = [str(_ROOT), *(entry for entry in sys.path if entry.endswith("site-packages"))]
            # Import neither runpy nor, for msgspec, typing: each takes 4 ms, in each start of a daemon.
            boot = f"import sys; sys.path[:0] = {paths!r}; sys.modules['typing_extensions'] = None"
            words = f"{theirs.fileno()}, {list(self._groups)!r}, merges={self._merges}"
            code = f"{boot}; from waypoint.launch.launcher import main; main({words})"
            with _sealed_interpreter() as program:  # the launcher's tasks become processes of sessions
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", code],
                    executable=program,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    env={"PATH": os.defpath},
                    start_new_session=True,
                )
        ours.settimeout(0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        self._control = ours
        self._opened = time.monotonic()
        asyncio.get_running_loop().add_reader(ours, self._replace)  # readable only at the launcher's end

    def close(self) -> None:
        """End the launcher and wait for its end. Its sessions continue."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _replace(self) -> None:
        """Start the launcher again after its death, unless it lived for less than QUICK_DEATH_S."""
        self.close()
        if time.monotonic() - self._opened > QUICK_DEATH_S:
            self.open()

    async def carry_out(self, spec: LaunchSpec, stdio: tuple[int, ...] = ()) -> "Started":
        """Let the launcher carry out `spec`. `stdio`: the descriptors that belong to `spec` (spec.py), except those for
        the ids of a session, which this method adds.

        Raises LauncherDied, or OSError with the errno, message and path of the call that failed.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.settimeout(0)
            with theirs:
                self._send(msgspec.json.encode(spec), (theirs.fileno(), *stdio, *fds_for_ids(spec)))
            await _wait_readable(ours)
            text, handles, flags, _address = socket.recv_fds(ours, 1 << 16, 4, socket.MSG_CMSG_CLOEXEC)
        if flags & socket.MSG_CTRUNC:  # the kernel dropped descriptors: this process has too many open files
            for handle in handles:
                os.close(handle)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not text:
            raise died()
        launched = msgspec.json.decode(text, type=LaunchAnswer)
        if not launched.pid:
            raise OSError(launched.errno, launched.error, launched.path)
        return Started(launched.pid, handles, launched.entered)

    def _send(self, request: bytes, fds: tuple[int, ...]) -> None:
        for _attempt in range(2):
            if self._control is None or (self._process and self._process.poll() is not None):
                with contextlib.suppress(OSError):
                    self.close()
                self.open()
            try:
                assert self._control is not None
                self._control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            except (BrokenPipeError, ConnectionResetError):
                self.close()
            else:
                return
        raise died()


def died() -> LauncherDied:
    return LauncherDied("start", "a process", "the launcher process died during the request", "try again")


@contextlib.contextmanager
def _sealed_interpreter() -> Iterator[str]:
    with contextlib.ExitStack() as held:
        try:
            program = held.enter_context(sealed.copy_of(sys.executable))
        except PermissionError as error:
            said = f"{error.strerror}: vm.memfd_noexec forbids programs in memory"
            raise HostLacks("start", "the launcher", said, "sysctl vm.memfd_noexec=1") from error
        yield program


def fds_for_ids(spec: LaunchSpec) -> tuple[int, ...]:
    """Return the descriptors of user namespaces that are sent with `spec`. The caller must not close them."""
    start = spec.mounts if isinstance(spec, CriuInto) else spec
    if not isinstance(start, StartSpec) or not start.ids.is_shifted:
        return ()
    whole = idmapped.namespace(start.ids.lines())
    if not any(bind.as_user for bind in start.binds):
        return (whole,)
    who, only = start.identity, start.ids.lines_with_only
    return whole, idmapped.namespace(only([who.uid]), only([who.gid, *who.groups]))


async def _wait_readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
