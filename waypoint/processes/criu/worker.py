"""One `criu swrk` process and the conversation with it, over a pair of SOCK_SEQPACKET sockets.

CRIU reports each stage of its work by a notification and waits for the answer. Out of scope: what requests mean
(rpc.py), and the namespaces in which CRIU runs (the caller's `spawn`).
"""

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from waypoint.linux.calls import programs
from waypoint.linux.tasks import procfs
from waypoint.model.errors import Failed, HostLacks
from waypoint.processes.criu.causes import TRY_AGAIN
from waypoint.processes.criu.messages import REQUEST, RESPONSE, RequestType, Value, decode, encode
from waypoint.processes.criu.options import Notice, OnNotice

MAX_PACKET_BYTES = 1 << 20
MAX_WORDS_BYTES = 1 << 16
PATIENCE = 20
# What the start of a process meets when a limit, of the machine or of one of its users, is used up for the moment.
_USED_UP = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)


class Process(Protocol):
    """A started CRIU: a `subprocess.Popen`, or the launcher's handle of a process that is not this one's child."""

    pid: int

    def wait(self) -> int: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CriuCommand:
    """The CRIU process that a `spawn` function must start, with the arguments `argv(n)`.

    `n` is the number that `socket_fd` has in the child. Stdin is /dev/null; stdout and stderr are `words_fd`.
    All signals must have their default actions: CRIU waits for its children, and with SIGCHLD ignored that fails. For a
    restore the process must have a session keyring of its own: images contain no keyrings, so restored tasks inherit
    CRIU's.
    """

    program: str
    env: dict[str, str]
    socket_fd: int
    words_fd: int

    def argv(self, socket_fd: int) -> list[str]:
        """The arguments, `socket_fd` being the socket's number in the child."""
        # --no-default-config: else the machine's /etc/criu/default.conf would change the request's options.
        return [self.program, "swrk", str(socket_fd), "--no-default-config"]


Spawn = Callable[[CriuCommand], Process]


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


class Worker:
    """A CRIU process for one request. Use as `with Worker(...) as worker`; the process has ended after the `with`.
    Entering it raises HostLacks if CRIU cannot be started, Failed if only for the moment: a limit is used up.
    """

    def __init__(self, path: str, spawn: Spawn, env: dict[str, str]) -> None:
        self._path = path
        self._spawn = spawn
        # PATH: CRIU runs tar for each tmpfs of the session. GNUTLS_NO_IMPLICIT_INIT: saves a millisecond, as CRIU does
        # not use TLS here. LD_BIND_NOW: CRIU forks for each task that it restores; symbols that are bound before the
        # forks are bound once instead of in each child, which saves another millisecond.
        self._env = {"PATH": programs.SEARCH_PATH, "GNUTLS_NO_IMPLICIT_INIT": "1", "LD_BIND_NOW": "1", **env}
        self._words_fd = -1
        self._pidfd = -1
        self._held = contextlib.ExitStack()
        self.refused: BaseException | None = None  # what a callback raised
        self.was_ended = False  # CRIU was killed because of that
        self._root = 0  # the root task of a restore, as the host sees it
        self.status = 0  # with which the process has ended, negative after a signal; 0 if only others can know it

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as held:
            self._words_fd = os.memfd_create("criu-words")
            held.callback(self._close_words)
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            held.enter_context(self._socket)
            with theirs:
                self._process = self._start(theirs)
            held.push(self._end)
            with contextlib.suppress(ProcessLookupError):  # ended and reaped: reading the socket will tell
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
            raise HostLacks("start", self._path, said, "see 'waypoint doctor'") from error

    def _end(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the process to end, which it does when its socket closes; after an exception, kill it."""
        if kind is not None:
            self._process.kill()
        self._socket.close()
        self.status = self._process.wait()

    def ask(
        self, request: dict[str, Value], on_notice: OnNotice | None = None, deadline_s: float | None = None
    ) -> dict[str, Value]:
        """Send `request`, call `on_notice` for each notification, and return CRIU's answer.

        An empty answer means that CRIU died; `words` may tell why. Tasks that CRIU was restoring may then still exist,
        and hold CRIU's end of the socket open.
        If `on_notice` raises, the exception is stored in `refused` and CRIU is told to give up; at pre-resume,
        when CRIU would not, the root task and CRIU are killed. Raises TimeoutError as `receive`.
        """
        self.send(request, deadline_s)
        while (response := self.receive()).get("type") == RequestType.NOTIFY:
            self.reply(agreed=self._notify(response, on_notice))
        return response

    @property
    def pid(self) -> int:
        """Of the CRIU process, in the `with`."""
        return self._process.pid

    def send(self, request: dict[str, Value], deadline_s: float | None = None) -> None:
        """Send the request. `deadline_s`: after how many seconds CRIU counts as hung (`receive`); None: never."""
        self._deadline_s = deadline_s
        self._send(request)

    def receive(self) -> dict[str, Value]:
        """CRIU's next packet; empty if CRIU has ended.

        The packet is a notification, which `reply` must answer, or the answer to the request. Raises TimeoutError if
        CRIU hangs: it sends nothing for the seconds given to `send`, and neither CRIU nor a process that CRIU has
        started uses the processor in the second half of them. A CRIU that works may be silent for longer, as it may
        have gigabytes to write, but not for more than PATIENCE times the seconds: it may also work in vain.
        """
        if not self._wait_readable():
            return {}
        try:
            packet = self._socket.recv(MAX_PACKET_BYTES)
        except ConnectionResetError:
            # CRIU has ended with a packet of ours unread: that is told once, before its last one.
            packet = self._socket.recv(MAX_PACKET_BYTES)
        return decode(RESPONSE, packet)

    def reply(self, *, agreed: bool) -> None:
        """Answer a notification. CRIU goes on if `agreed`, else CRIU gives up."""
        self._send({"type": RequestType.NOTIFY, "notify_success": agreed})

    def _send(self, request: dict[str, Value]) -> None:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # CRIU has died: `receive` will tell
            self._socket.send(encode(REQUEST, request))

    def words(self) -> list[str]:
        """The lines of CRIU's stdout and stderr, to which it writes before it has opened its log."""
        text = os.pread(self._words_fd, MAX_WORDS_BYTES, 0) if self._words_fd >= 0 else self._last_words
        return text.decode(errors="replace").split("\n")

    def _notify(self, response: dict[str, Value], on_notice: OnNotice | None) -> bool:
        said = response.get("notify")
        if on_notice is None or not isinstance(said, dict):
            return True
        pid = said.get("pid")
        notice = Notice(str(said.get("script", "")), pid if isinstance(pid, int) else None)
        self._root = notice.pid or self._root
        try:
            on_notice(notice)
        except BaseException as error:
            self.refused = error
            if notice.stage == "pre-resume":  # from there on CRIU does not stop for a refusal
                is_gone = isinstance(error, FileNotFoundError | ProcessLookupError)  # as where CRIU has died
                self.was_ended = not is_gone
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._root, signal.SIGKILL)
                self._process.kill()  # it would wait in vain for the end of tasks that it traces
            return False
        return True

    def _wait_readable(self) -> bool:
        """Wait for a packet. False if CRIU has ended and no packet is left. Raises TimeoutError after the deadline."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
        looks, worked_ns = 0, -1
        while not (ready := poll.poll(None if self._deadline_s is None else self._deadline_s * 1000 / 2)):
            looks, before_ns, worked_ns = looks + 1, worked_ns, self._worked_ns()
            if worked_ns == before_ns or looks >= 2 * PATIENCE:
                raise TimeoutError(f"no word for {self._deadline_s} s")
        if any(fd == self._socket.fileno() for fd, _ in ready):
            return True
        # It has ended. The kernel looks at one after the other, so it may have sent its last packet in between.
        poll.unregister(self._pidfd)
        return bool(poll.poll(0))

    def _worked_ns(self) -> int:
        """The processor time, in nanoseconds, of CRIU and of all processes that CRIU has started."""
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
