"""The daemon's connection to the launcher: starts the launcher, sends it requests, starts it again if it dies."""

import array
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from waypoint.launch.spec import Launched, LaunchSpec, Will
from waypoint.model.errors import Failed

QUICK_DEATH_S = 1.0
"""A launcher that has lived for less may die again at once."""

_ROOT = Path(__file__).resolve().parents[2]


class Started(NamedTuple):
    """A started process: its pid as the host sees it, and the descriptors of the answer: first a pidfd of it (start.py,
    enter.py and criu.py tell which others).

    The receiver closes the descriptors. They are valid even if the process has ended by now.
    """

    pid: int
    handles: list[int]


class Launcher:
    """The launcher of one daemon. To be used in the event loop, but for the constructor.

    The launcher inherits the mount namespace of the process that calls `open`. If it dies, it is started again.
    """

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._will: tuple[Will, int] | None = None
        self._opened = 0.0

    def open(self) -> None:
        """Start the launcher process, unless it was started. It reads its first request after about 30 ms; requests
        wait in the socket.
        """
        if self._control is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            paths = [str(_ROOT), *(entry for entry in sys.path if entry.endswith("site-packages"))]
            boot = f"import sys; sys.path[:0] = {paths!r}; sys.argv = ['launcher', '{theirs.fileno()}']"
            code = f"{boot}; import runpy; runpy.run_module('waypoint.launch.launcher', run_name='__main__')"
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
        self._opened = time.monotonic()
        asyncio.get_running_loop().add_reader(ours, self._replace)  # nothing comes but the end
        if self._will is not None:
            self._bequeath(*self._will)

    def leave_will(self, will: Will, mounts_fd: int) -> None:
        """Have the launcher, and each later one, carry out `will` if this process dies. The descriptor stays the
        caller's, and must stay open.
        """
        self._will = will, mounts_fd
        self._bequeath(will, mounts_fd)

    def close(self) -> None:
        """End the launcher and wait for its end. The sessions that it has started go on."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            if self._will is not None:
                self._bequeath(Will(socket="", argv=[], env={}))
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _replace(self) -> None:
        """The launcher has died: start the next one, which has the will. If it died young, the next request does so."""
        self.close()
        if time.monotonic() - self._opened > QUICK_DEATH_S:
            self.open()

    async def carry_out(self, spec: LaunchSpec, stdio: tuple[int, ...] = ()) -> "Started":
        """Have the launcher carry out `spec`. `stdio`: the descriptors that belong to `spec` (spec.py).

        Raises OSError with the failing call's errno, message and path if a step failed; Failed if the launcher died.
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

    def _bequeath(self, will: Will, *fds: int) -> None:
        if self._control is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died; the next one is told
                self._control.sendmsg([msgspec.json.encode(will)], _passed(fds))

    def _send(self, request: bytes, fds: tuple[int, ...]) -> None:
        for _attempt in range(2):
            if self._control is None or (self._process and self._process.poll() is not None):
                with contextlib.suppress(OSError):
                    self.close()
                self.open()
            try:
                assert self._control is not None
                self._control.sendmsg([request], _passed(fds))
            except (BrokenPipeError, ConnectionResetError):
                self.close()
            else:
                return
        raise Failed("start", "a process", "the launcher does not stay alive", "see the daemon's log")


def _passed(fds: tuple[int, ...]) -> list[tuple[int, int, "array.array[int]"]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


async def _wait_readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
