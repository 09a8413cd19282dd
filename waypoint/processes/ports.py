"""Which TCP and UDP ports processes use, for sessions that share the host's network.

There, a process that has a port cannot be restored beside itself. CRIU does not report that reliably: sockets that were
restored once keep SO_REUSEPORT, so two servers would share the port and each get a part of the connections.
"""

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator

from waypoint.linux.net import sockets
from waypoint.linux.tasks import pidfd, procfs

_ROOT = 0


def held_by(pids: Iterable[int]) -> list[str]:
    """The ports of the sockets that the processes have open, sorted, in the form `tcp 8000`.

    Processes that have ended are skipped.
    """
    inodes = {inode for inode, _pid, _number in _open_sockets(pids)}
    return sorted({_name(found) for found in sockets.inet_sockets() if found.inode in inodes})


def taken(ports: Iterable[str], leaving: Iterable[int] = ()) -> list[str]:
    """Those of `ports` that a process has open now, at any address of the caller's network namespace.

    `leaving`: pids of processes that do not count.
    """
    spared = {0, *(inode for inode, _pid, _number in _open_sockets(leaving))}  # 0: a socket that no process has open
    return sorted({_name(found) for found in sockets.inet_sockets() if found.inode not in spared}.intersection(ports))


@contextlib.contextmanager
def shared(pids: Iterable[int]) -> Iterator[None]:
    """For the `with`, let a CRIU of the host's root bind the ports that the processes have, beside them.

    CRIU sets SO_REUSEPORT on the sockets that it binds. The kernel lets two sockets have a port if both have that
    option and the same owner. So the sockets of the processes get it too, and root as their owner; afterwards they are
    as they were. The processes must stand still. Connections that come meanwhile may reach either side.
    """
    inodes = {found.inode for found in sockets.inet_sockets()}
    with contextlib.ExitStack() as undoing:
        for inode, pid, number in _open_sockets(pids):
            if inode in inodes:
                undoing.enter_context(_shared(undoing.enter_context(socket.socket(fileno=pidfd.take(pid, number)))))
        yield


@contextlib.contextmanager
def _shared(sock: socket.socket) -> Iterator[None]:
    owner = os.fstat(sock.fileno()).st_uid
    before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    os.fchown(sock.fileno(), _ROOT, -1)
    try:
        yield
    finally:
        os.fchown(sock.fileno(), owner, -1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, before)


def _open_sockets(pids: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Each socket that a process has open: the socket's inode, the process, the number of the descriptor."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for number, path in procfs.open_files(pid).items():
                if path.startswith("socket:["):
                    yield int(path[len("socket:[") : -1]), pid, number


def _name(found: sockets.InetSocket) -> str:
    return f"{found.protocol} {found.port}"
