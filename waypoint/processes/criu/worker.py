"""One `criu swrk` process and the messages to and from it, over a pair of SOCK_SEQPACKET sockets.

CRIU reports each stage of its work by a notification and waits for the answer. The requests are made in rpc.py; the
caller's `spawn` decides in which namespaces CRIU runs.
"""

import contextlib
import errno
import os
import select
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, runtime_checkable

from waypoint.linux.calls import programs
from waypoint.linux.tasks import procfs
from waypoint.model.errors import Failed, HostLacks
from waypoint.processes.criu.causes import TRY_AGAIN
from waypoint.processes.criu.messages import REQUEST, RESPONSE, RequestType, Value, decode, encode
from waypoint.processes.criu.options import Notice, OnNotice

MAX_PACKET_BYTES = 1 << 20
MAX_WORDS_BYTES = 1 << 16
PATIENCE = 20
# PATH: CRIU runs tar for each tmpfs of the session. GNUTLS_NO_IMPLICIT_INIT: saves a millisecond; TLS is not used.
# LD_BIND_NOW: CRIU forks for each task that it restores; binding symbols before the forks saves a millisecond.
_ENV = {"PATH": programs.SEARCH_PATH, "GNUTLS_NO_IMPLICIT_INIT": "1", "LD_BIND_NOW": "1"}
# Errors at the start of a process while a limit of the machine or of a user is reached.
_USED_UP = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)


class Channel(NamedTuple):
    """The daemon's end of a CRIU's socket, and the file that is CRIU's stdout and stderr. Who has it closes both."""

    socket: socket.socket
    words_fd: int


class Process(Protocol):
    """A started CRIU: a `subprocess.Popen`, or a `LaunchedCriu`, which is not a child of this process."""

    pid: int

    def wait(self) -> int: ...

    def kill(self) -> None: ...


@runtime_checkable
class StartedAhead(Protocol):
    """A Process that was started before it was asked for, so it has not the socket and the file of the command, but
    those of `take_channel`, which is called once.
    """

    def take_channel(self) -> Channel: ...


@dataclass(frozen=True, slots=True)
class CriuCommand:
    """The CRIU process that a `spawn` function must start, with /dev/null as stdin, and `words_fd` as stdout and
    stderr.

    All signals must have their default actions: with SIGCHLD ignored, CRIU cannot wait for its children. For a restore
    the process must have its own session keyring: images contain no keyrings, so restored tasks inherit CRIU's.
    """

    program: str
    env: dict[str, str]
    socket_fd: int
    words_fd: int

    def argv(self, socket_fd: int) -> list[str]:
        """The arguments. `socket_fd`: the socket's number in the child."""
        # --no-default-config: the machine's /etc/criu/default.conf must not change the request's options.
        return [self.program, "swrk", str(socket_fd), "--no-default-config"]


Spawn = Callable[[CriuCommand], Process]


def environment(more: dict[str, str]) -> dict[str, str]:
    """The environment of a CRIU, with the variables `more`."""
    return {**_ENV, **more}


def spawn_here(command: CriuCommand) -> Process:
    """Start CRIU as a child, in this process's own namespaces."""
    return subprocess.Popen(
        command.argv(command.socket_fd),
        env=command.env,
        pass_fds=(command.socket_fd,),
        stdin=subprocess.DEVNULL,
        stdout=command.words_fd,
        stderr=command.words_fd,
    )


def start_template(path: str, spawn: Spawn, env: dict[str, str]) -> tuple[Process, socket.socket] | None:
    """Start the template that `spawn` describes. Return it and the socket for its orders when it has read its pages;
    None if it has failed. Raises OSError.
    """
    with contextlib.ExitStack() as held:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        held.enter_context(ours)
        with theirs, open(os.devnull, "wb") as words:
            process = spawn(CriuCommand(path, environment(env), theirs.fileno(), words.fileno()))
        held.callback(process.wait)
        held.callback(process.kill)
        if not ours.recv(1):
            return None
        held.pop_all()
    return process, ours


class Worker:
    """A CRIU process for one request, used as `with Worker(...) as worker`; the process has ended after the block.
    Entering the block raises HostLacks if CRIU cannot be started; Failed if it cannot be started now, because a limit
    is reached.
    """

    def __init__(self, path: str, spawn: Spawn, env: dict[str, str]) -> None:
        self._path = path
        self._spawn = spawn
        self._env = environment(env)
        self._words_fd = -1
        self._pidfd = -1
        self._held = contextlib.ExitStack()
        self.refused: BaseException | None = None  # what a callback raised
        self.status = 0  # exit status, negative after a signal; 0 for a process that is not a child

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as held:
            self._words_fd = os.memfd_create("criu-words")
            held.callback(self._close_words)
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            held.callback(lambda: self._socket.close())
            with theirs:
                self._process = self._start(theirs)
            if isinstance(self._process, StartedAhead):
                self._socket.close()
                os.close(self._words_fd)
                self._socket, self._words_fd = self._process.take_channel()
            held.push(self._end)
            with contextlib.suppress(ProcessLookupError):  # ended and reaped: reading the socket shows it
                self._pidfd = os.pidfd_open(self._process.pid)
                held.callback(os.close, self._pidfd)
            self._held = held.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._held.__exit__(kind, None, None)

    def _start(self, theirs: socket.socket) -> Process:
        command = CriuCommand(self._path, self._env, theirs.fileno(), self._words_fd)
        try:
            return self._spawn(command)
        except OSError as error:
            where = f": {error.filename}" if error.filename not in (None, self._path) else ""
            said = f"{error.strerror or error}{where}"
            if error.errno in _USED_UP:
                raise Failed("start", self._path, said, TRY_AGAIN) from error
            raise HostLacks("start", self._path, said, "see 'waypoint doctor'", code="criu-unusable") from error

    def _end(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the socket, which ends the process, and wait for its end; after an exception, kill it first."""
        if kind is not None:
            self._process.kill()
        self._socket.close()
        self.status = self._process.wait()

    def ask(
        self, request: dict[str, Value], on_notice: OnNotice | None = None, deadline_s: float | None = None
    ) -> dict[str, Value]:
        """Send `request`, call `on_notice` for each notification, and return CRIU's answer.

        The answer is empty if CRIU died; `words` may contain the reason. Tasks that CRIU was restoring may then still
        exist, and hold CRIU's end of the socket open. If `on_notice` raises, the exception is stored in `refused`, and
        CRIU gives up if it has not reached the stage pre-resume. Raises TimeoutError if CRIU hangs (`receive`).
        """
        self.send(request, deadline_s)
        while (response := self.receive()).get("type") == RequestType.NOTIFY:
            self.reply(agreed=self._notify(response, on_notice))
        return response

    def send(self, request: dict[str, Value], deadline_s: float | None = None) -> None:
        """Send the request. `deadline_s`: silence after which CRIU counts as hung (`receive`); None: never."""
        self._deadline_s = deadline_s
        self._send(request)

    def receive(self) -> dict[str, Value]:
        """CRIU's next packet: a notification, which `reply` must answer, or the answer to the request; empty if CRIU
        has ended.

        Raises TimeoutError if CRIU hangs: it sends nothing for the seconds given to `send`, and neither CRIU nor its
        children use the processor in the second half of this time. A CRIU that works may have gigabytes to write, so
        it may be silent for PATIENCE times as long.
        """
        if not self._wait_readable():
            return {}
        with contextlib.suppress(ConnectionResetError):  # CRIU has died, as at an end of file
            return decode(RESPONSE, self._socket.recv(MAX_PACKET_BYTES))
        return {}

    def reply(self, *, agreed: bool) -> None:
        """Answer a notification: CRIU continues if `agreed`, else it gives up."""
        self._send({"type": RequestType.NOTIFY, "notify_success": agreed})

    def _send(self, request: dict[str, Value]) -> None:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # CRIU has died, which `receive` reports
            self._socket.send(encode(REQUEST, request))

    def words(self) -> list[str]:
        """The lines of CRIU's stdout and stderr, which CRIU uses until it has opened its log."""
        text = os.pread(self._words_fd, MAX_WORDS_BYTES, 0) if self._words_fd >= 0 else self._last_words
        return text.decode(errors="replace").split("\n")

    def _notify(self, response: dict[str, Value], on_notice: OnNotice | None) -> bool:
        said = response.get("notify")
        if on_notice is None or not isinstance(said, dict):
            return True
        pid = said.get("pid")
        try:
            on_notice(Notice(str(said.get("script", "")), pid if isinstance(pid, int) else None))
        except BaseException as error:
            self.refused = error
            return False
        return True

    def _wait_readable(self) -> bool:
        """Wait for a packet. False if CRIU has ended and no packet is left. Raises TimeoutError if CRIU hangs."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
        looks, worked_ns = 0, -1
        while not (ready := poll.poll(None if self._deadline_s is None else self._deadline_s * 1000 / 2)):
            looks, before_ns, worked_ns = looks + 1, worked_ns, self._worked_ns()
            if worked_ns == before_ns or looks >= 2 * PATIENCE:
                raise TimeoutError(f"CRIU sent nothing for {self._deadline_s} s")
        return any(fd == self._socket.fileno() for fd, _ in ready)

    def _worked_ns(self) -> int:
        """Processor time of CRIU and all its descendants, in nanoseconds."""
        total_ns, left = 0, [self._process.pid]
        while left:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                pid = left.pop()
                total_ns += procfs.processor_ns(pid)
                left += procfs.children(pid)
        return total_ns

    def _close_words(self) -> None:
        self._last_words = os.pread(self._words_fd, MAX_WORDS_BYTES, 0)
        os.close(self._words_fd)
        self._words_fd = -1
