"""A program that forwards connections from ports of the machine into a session (`shell --publish`), and the loop of it.

The program is started as root, with listening sockets of the machine's network. It enters the session's network, so
that the sockets which it makes there are the session's, takes the ids of a user that owns nothing (without root it
drops its capabilities instead), prints its pid and goes on in the background until the session's pid 1 has ended. So it
outlives the daemon. What it reads comes from outside and from the session; it looks at none of it.

It keeps MOST_CONNECTIONS at most: one more closes the one that has been idle the longest. Each keeps at most PIECE
bytes for each direction.
"""

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Mapping

from waypoint.egress import plan
from waypoint.linux.calls import abilities
from waypoint.linux.tasks import namespaces, own_namespace, pidfd, procfs

MOST_CONNECTIONS = 384
PIECE = 1 << 16
_MOST_FILES = 1024
_AT_ONCE = 16  # connections that are accepted before others are served
_INSIDE = (
    "127.0.0.1",
    "::1",
    socket.inet_ntop(socket.AF_INET, plan.INSIDE[0].address),
)  # where a server of the session may listen
_RESET = struct.pack("ii", 1, 0)  # struct linger: closing the socket sends a reset


class _Side:
    """One of the two sockets of a connection. `waits`: bytes for this socket, read from the other side. `is_open`: its
    end of data was not read. `left`: addresses to which it is still to be connected, in order; None: it is connected.
    """

    __slots__ = ("connection", "is_open", "left", "mask", "other", "sock", "waits")

    def __init__(self, sock: socket.socket, connection: "_Connection") -> None:
        self.sock = sock
        self.connection = connection
        self.other: _Side = self
        self.waits = memoryview(b"")
        self.is_open = True
        self.left: list[str] | None = None
        self.mask = 0

    @property
    def wanted(self) -> int:
        if self.left is not None:
            return select.EPOLLOUT
        reads = self.is_open and self.other.left is None and not self.other.waits
        return (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if self.waits else 0)


class _Connection:
    __slots__ = ("inner", "outer", "port")

    def __init__(self, accepted: socket.socket, port: int) -> None:
        self.port = port
        self.outer = _Side(accepted, self)
        self.inner = _Side(accepted, self)  # has its own socket as soon as it is being connected
        self.inner.left = list(_INSIDE)
        self.outer.other, self.inner.other = self.inner, self.outer


class Forwarder:
    """Forwards connections of the sockets in `listening` to the port of the session that each stands for."""

    def __init__(self, listening: Mapping[socket.socket, int], ended: int, most: int = MOST_CONNECTIONS) -> None:
        """`ended`: a descriptor that becomes readable when the session has ended."""
        self._poll = select.epoll()
        self._listening = {one.fileno(): (one, port) for one, port in listening.items()}
        self._ended = ended
        self._most = most
        self._sides: dict[int, _Side] = {}
        self._by_use: dict[_Connection, None] = {}  # the one that has been idle the longest first
        for fd in (*self._listening, ended):
            self._poll.register(fd, select.EPOLLIN)

    def run(self) -> None:
        while True:
            # Serving one may close others, whose numbers are then used again.
            for fd, side, events in [(fd, self._sides.get(fd), events) for fd, events in self._poll.poll()]:
                if fd == self._ended:
                    return
                if fd in self._listening:
                    self._accept(*self._listening[fd])
                elif side is not None and self._sides.get(fd) is side:
                    self._serve(side, events)

    def _accept(self, listener: socket.socket, port: int) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the client has gone, or this process or the machine has no descriptor left
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS) and self._by_use:
                    self._close(next(iter(self._by_use)))
                return
            while len(self._by_use) >= self._most:
                self._close(next(iter(self._by_use)))
            accepted.settimeout(0)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(accepted, port)
            self._by_use[connection] = None
            self._watch(connection.outer)
            self._connect(connection.inner)

    def _connect(self, side: _Side) -> None:
        """Begin to connect `side` to the next address; without one, close the connection."""
        while side.left:
            address = side.left.pop(0)
            try:
                sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            except OSError:  # a kernel without IPv6
                continue
            sock.settimeout(0)
            if sock.connect_ex((address, side.connection.port)) not in (0, errno.EINPROGRESS):
                sock.close()
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            side.sock = sock
            self._watch(side)
            return
        self._close(side.connection, by_reset=True)

    def _watch(self, side: _Side) -> None:
        """Let epoll report what `side` waits for. One that waits for nothing is not watched: epoll would report its
        hang-up again and again.
        """
        fd, wanted = side.sock.fileno(), side.wanted
        if wanted == side.mask:
            return
        if not side.mask:
            self._poll.register(fd, wanted)
        elif wanted:
            self._poll.modify(fd, wanted)
        else:
            self._poll.unregister(fd)
        side.mask = wanted
        self._sides[fd] = side

    def _serve(self, side: _Side, events: int) -> None:
        connection = side.connection
        self._by_use[connection] = self._by_use.pop(connection)
        try:
            if side.left is not None:
                self._finish_connecting(side)
                return
            if side.waits and events & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
                self._send(side)
            if side.wanted & select.EPOLLIN and events & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP):
                with contextlib.suppress(BlockingIOError):
                    self._read(side)
        except OSError:
            self._close(connection, by_reset=True)
            return
        if not (side.is_open or side.other.is_open or side.waits or side.other.waits):
            self._close(connection)
            return
        self._watch(side)
        self._watch(side.other)

    def _finish_connecting(self, side: _Side) -> None:
        if side.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._drop(side)
            self._connect(side)
            return
        side.left = None
        self._watch(side)
        self._watch(side.other)

    def _read(self, side: _Side) -> None:
        data = side.sock.recv(PIECE)
        if data:
            side.other.waits = memoryview(data)
            self._send(side.other)
        else:
            side.is_open = False
            side.other.sock.shutdown(socket.SHUT_WR)

    def _send(self, side: _Side) -> None:
        with contextlib.suppress(BlockingIOError):
            side.waits = side.waits[side.sock.send(side.waits) :]

    def _drop(self, side: _Side) -> None:
        self._sides.pop(side.sock.fileno(), None)
        if side.mask:
            self._poll.unregister(side.sock.fileno())
            side.mask = 0
        side.sock.close()

    def _close(self, connection: _Connection, *, by_reset: bool = False) -> None:
        self._by_use.pop(connection, None)
        for side in (connection.outer, connection.inner):
            if side.sock.fileno() >= 0:
                if by_reset:
                    with contextlib.suppress(OSError):
                        side.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self._drop(side)


def main(argv: list[str]) -> None:
    """Run the program. `argv`: the uid to take; descriptors of the mount namespace (-1: the caller's) and the network
    namespace to enter; pid and start time of the session's pid 1; for each listening socket `DESCRIPTOR:PORT`.
    """
    owner, mounts_fd, network_fd, pid, start = map(int, argv[:5])
    listening = {}
    for word in argv[5:]:
        number, _, port = word.partition(":")
        listening[socket.socket(fileno=int(number))] = int(port)
    ended = pidfd.open(pid)
    if not procfs.is_same(pid, start):
        raise ProcessLookupError(errno.ESRCH, "the session has ended")
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_FILES, _MOST_FILES))
    if mounts_fd >= 0:  # the daemon's mounts must not be held
        namespaces.setns(mounts_fd, namespaces.CLONE_NEWNS)
        os.close(mounts_fd)
    namespaces.setns(network_fd, namespaces.CLONE_NEWNET)
    os.close(network_fd)
    os.chdir("/")
    if abilities.own().owners:
        os.setgroups([])
        os.setresgid(owner, owner, owner)
        os.setresuid(owner, owner, owner)
    else:
        own_namespace.drop_capabilities()
    child = os.fork()
    if child:
        print(child, flush=True)
        return
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    Forwarder(listening, ended).run()
    os._exit(0)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
        sys.exit(1)
