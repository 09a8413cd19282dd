"""One `criu swrk` process and the conversation with it, over a socket pair of packets.

CRIU reports each stage and waits for an answer (notifications); a stage may bring a file descriptor. Out of scope: what
requests mean (criu_rpc.py), and the namespaces in which the process must run: the caller's `spawn` puts it there.
"""

import array
import contextlib
import os
import select
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from waypoint.linux import programs
from waypoint.model.errors import HostLacks
from waypoint.processes.criu_messages import REQUEST, RESPONSE, RequestType, Value, decode, encode
from waypoint.processes.criu_options import Notice, OnNotice

MAX_PACKET_BYTES = 1 << 20
MAX_WORDS_BYTES = 1 << 16


class Process(Protocol):
    """A started criu: a `subprocess.Popen`, or the launcher's handle of a process that is not our child."""

    pid: int

    def wait(self) -> int: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Command:
    """What `spawn` starts, as `argv(n)` says with n being the number that `socket_fd` has in the child.

    Stdin is /dev/null, stdout and stderr are `words_fd`; `inherited_fds` keep their numbers.
    Signals must have their default actions: CRIU waits for its children, which an ignored SIGCHLD makes impossible. For
    a restore the process must have a session keyring of its own: keyrings are in no image, restored tasks get CRIU's.
    """

    program: str
    env: dict[str, str]
    socket_fd: int
    words_fd: int
    inherited_fds: tuple[int, ...] = ()

    def argv(self, socket_fd: int) -> list[str]:
        # Without --no-default-config a /etc/criu/default.conf of the machine would change what we asked for.
        return [self.program, "swrk", str(socket_fd), "--no-default-config"]


Spawn = Callable[[Command], Process]


def spawn_here(command: Command) -> Process:
    """Start criu as a child, in this process's own namespaces."""
    return subprocess.Popen(
        command.argv(command.socket_fd),
        env=command.env,
        pass_fds=(command.socket_fd, *command.inherited_fds),
        stdin=subprocess.DEVNULL,
        stdout=command.words_fd,
        stderr=command.words_fd,
    )


class Worker:
    """A criu process for one request. Use as `with Worker(...) as worker`; after that the process has ended."""

    def __init__(self, path: str, spawn: Spawn, env: dict[str, str], fds: tuple[int, ...] = ()) -> None:
        self._path = path
        self._spawn = spawn
        # CRIU calls tar for a tmpfs of the session's own. It never speaks TLS here: a millisecond of preparing for it.
        # It forks for each task that it restores, so what is linked before is linked once: another millisecond.
        self._env = {"PATH": programs.SEARCH_PATH, "GNUTLS_NO_IMPLICIT_INIT": "1", "LD_BIND_NOW": "1", **env}
        self._fds = fds
        self._pidfd = -1
        self.refused: BaseException | None = None  # what a callback raised

    def __enter__(self) -> Self:
        self._words_fd = os.memfd_create("criu-words")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = Command(self._path, self._env, theirs.fileno(), self._words_fd, self._fds)
            try:
                self._process = self._spawn(command)
            except BaseException as error:
                self._close()
                if not isinstance(error, OSError):
                    raise
                where = f": {error.filename}" if error.filename not in (None, self._path) else ""
                said = f"{error.strerror or error}{where}"
                raise HostLacks("start", self._path, said, "run `waypoint setup`") from error
        with contextlib.suppress(ProcessLookupError):  # gone and reaped: the socket will say so
            self._pidfd = os.pidfd_open(self._process.pid)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.kill()
        self._socket.close()
        self._process.wait()
        self._close()

    def ask(
        self, request: dict[str, Value], on_notice: OnNotice | None = None, deadline_s: float | None = None
    ) -> dict[str, Value]:
        """Send `request`, serve notices until the answer. An empty answer means that CRIU died; `words` may say why.

        Tasks that it was restoring may live on then, waiting for it, and hold its end of the socket open.

        Raises TimeoutError if CRIU says nothing for `deadline_s` seconds. An exception of `on_notice` makes CRIU give
        up (if it still can) and is in `refused` afterwards.
        """
        self._deadline_s = deadline_s
        # A reset connection: it died, the same as an end of file.
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            self._socket.send(encode(REQUEST, request))
            while answer := self._receive():
                response, fd = answer
                if response.get("type") != RequestType.NOTIFY:
                    return response
                agreed = self._notify(response, fd, on_notice)
                self._socket.send(encode(REQUEST, {"type": RequestType.NOTIFY, "notify_success": agreed}))
        return {}

    def words(self) -> list[str]:
        """What the process said outside its log, before it had one: the lines of its stdout and stderr."""
        text = os.pread(self._words_fd, MAX_WORDS_BYTES, 0) if self._words_fd >= 0 else self._last_words
        return text.decode(errors="replace").split("\n")

    def _notify(self, response: dict[str, Value], fd: int | None, on_notice: OnNotice | None) -> bool:
        said = response.get("notify")
        if on_notice is None or not isinstance(said, dict):
            if fd is not None:
                os.close(fd)
            return True
        pid = said.get("pid")
        try:
            on_notice(Notice(str(said.get("script", "")), pid if isinstance(pid, int) else None, fd))
        except BaseException as error:
            self.refused = error
            return False
        return True

    def _receive(self) -> tuple[dict[str, Value], int | None] | None:
        """The next packet and the fd that came with it; None when CRIU is gone."""
        if not self._wait_readable():
            return None
        room = socket.CMSG_SPACE(array.array("i").itemsize)
        content, ancillary, _flags, _address = self._socket.recvmsg(MAX_PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, kind, raw in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
        if not content:
            return None
        return decode(RESPONSE, content), fds[0] if fds else None

    def _wait_readable(self) -> bool:
        """Wait for a packet. False if the process has ended without one more. Raises TimeoutError."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
        ready = poll.poll(None if self._deadline_s is None else self._deadline_s * 1000)
        if not ready:
            raise TimeoutError(f"no word for {self._deadline_s} s")
        return any(fd == self._socket.fileno() for fd, _ in ready)

    def _close(self) -> None:
        self._last_words = os.pread(self._words_fd, MAX_WORDS_BYTES, 0)
        os.close(self._words_fd)
        self._words_fd = -1
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._socket.close()
