"""The daemon's side of the launcher: starts it, sends it plans, starts it again if it dies."""

import array
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from waypoint.model.errors import Failed
from waypoint.session.launch.spec import Launched, LaunchSpec

_ROOT = Path(__file__).resolve().parents[3]


class Started(NamedTuple):
    """A process: its pid as the host sees it, and the descriptors that start or enter tells of.

    They are the receiver's to close, and good even if the process has ended by now.
    """

    pid: int
    handles: list[int]


class Launcher:
    """A running launcher. Made in the daemon's mount namespace, which it inherits."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the process (it needs some 30 ms until it reads; requests wait in the socket)."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            paths = [str(_ROOT), *(entry for entry in sys.path if entry.endswith("site-packages"))]
            boot = f"import sys; sys.path[:0] = {paths!r}; sys.argv = ['launcher', '{theirs.fileno()}']"
            code = f"{boot}; import runpy; runpy.run_module('waypoint.session.launch.launcher', run_name='__main__')"
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.defpath},
                start_new_session=True,
            )
        ours.settimeout(0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        self._control = ours

    def close(self) -> None:
        """End the launcher; sessions it started go on."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    async def carry_out(self, spec: LaunchSpec, stdio: tuple[int, ...] = ()) -> "Started":
        """Have `spec` carried out.

        Raises OSError with the failing call's errno, words and path, if a step failed; Failed if the launcher died.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.settimeout(0)
            with theirs:
                self._send(msgspec.json.encode(spec), (theirs.fileno(), *stdio))
            await _wait_readable(ours)
            text, handles, _flags, _address = socket.recv_fds(ours, 1 << 16, 4, socket.MSG_CMSG_CLOEXEC)
        if not text:
            raise Failed("start", "a process", "the launcher died while it worked on it", "try again")
        launched = msgspec.json.decode(text, type=Launched)
        if not launched.pid:
            raise OSError(launched.errno, launched.error, launched.path)
        return Started(launched.pid, handles)

    def _send(self, request: bytes, fds: tuple[int, ...]) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        for _attempt in range(2):
            if self._control is None or (self._process and self._process.poll() is not None):
                with contextlib.suppress(OSError):
                    self.close()
                self.open()
            try:
                assert self._control is not None
                self._control.sendmsg([request], ancillary)
            except (BrokenPipeError, ConnectionResetError):
                self.close()
            else:
                return
        raise Failed("start", "a process", "the launcher does not stay alive", "see the daemon's log")


async def _wait_readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
