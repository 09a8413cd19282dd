"""Which TCP and UDP ports processes use, for sessions that share the host's network.

There, a process that has a port cannot be restored beside itself. CRIU does not report that reliably: sockets that were
restored once keep SO_REUSEPORT, so two servers would share the port and each get a part of the connections.
"""

import contextlib
import os
import socket
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from waypoint.linux.net import sockets, tcp_connections
from waypoint.linux.tasks import procfs

LET_GO_S = 1.0  # an end waits for it, and processes may have millions of files open
_UNREAD = {
    "tcp": "{} connections that nobody has accepted yet are not in copies, where their other sides wait in vain",
    "udp": "datagrams that nobody has read yet are not in copies",
}


class HeldPorts(NamedTuple):
    """Ports in the form `tcp 8000`, sorted. `bound`: what a copy must bind again. `connections`: the ports of TCP
    connections, which copies have as closed ones.
    """

    bound: list[str]
    connections: list[str]


def held_by(pids: Iterable[int]) -> HeldPorts:
    """The ports of the sockets that the processes have open. Processes that have ended are skipped."""
    inodes = {inode for inode, _pid, _number in open_sockets(pids)}
    found = [one for one in sockets.inet_sockets() if one.inode in inodes]
    bound, connections = ({_name(one) for one in found if one.is_connection is wanted} for wanted in (False, True))
    return HeldPorts(sorted(bound), sorted(connections))


def taken(ports: Iterable[str], leaving: Iterable[int] = ()) -> list[str]:
    """Those of `ports` that a process has open now, at any address of the caller's network namespace.

    `leaving`: pids of processes that do not count.
    """
    spared = {0, *(inode for inode, _pid, _number in open_sockets(leaving))}  # 0: a socket that no process has open
    return sorted({_name(found) for found in sockets.inet_sockets() if found.inode not in spared}.intersection(ports))


def unread(pids: Collection[int], table: socket.socket) -> list[str]:
    """What waits at the sockets of the processes, which an image does not keep, in words for each port. `table`: of
    their network namespace (`sockets.open_table`).
    """
    waiting = list(sockets.unread(table))
    if waiting and any(sockets.shares_network(pid) for pid in list(pids)[:1]):
        inodes = {inode for inode, _pid, _number in open_sockets(pids)}
        waiting = [one for one in waiting if one.inode in inodes]
    return sorted(f"{one.protocol} {one.port}: {_UNREAD[one.protocol].format(one.number)}" for one in waiting)


def outside(table: socket.socket) -> list[str]:
    """The other ends of the connections to other machines, in the network namespace of `table`."""
    return sorted({one.name for one in tcp_connections.outside(table)})


@contextlib.contextmanager
def shared(pids: Iterable[int], root: int) -> Iterator[None]:
    """For the `with`, let a CRIU bind the ports that the processes have, beside them. `root`: the host's id for the
    root of the user namespace that it restores.

    CRIU sets SO_REUSEPORT on the sockets that it binds. The kernel lets two sockets have a port if both have that
    option and the same owner. So the sockets of the processes get it too, and `root` as their owner; afterwards they
    are as they were. The processes must stand still. Connections that come meanwhile may reach either side.
    """
    inodes = {found.inode for found in sockets.inet_sockets()}
    with contextlib.ExitStack() as undoing:
        for inode, pid, number in open_sockets(pids):
            if inode in inodes:
                sock = undoing.enter_context(sockets.take(pid, number))
                undoing.enter_context(_shared(sock, root))
        yield


def let_go(pids: Iterable[int]) -> None:
    """Have the kernel give the ports of the processes, which are about to be killed, to a CRIU that binds them next.

    A port whose connection has ended is in use for another minute (TIME_WAIT), unless its socket had SO_REUSEADDR. CRIU
    sets that on those that it binds, too. What is not found within LET_GO_S keeps its ports for that minute.
    """
    inodes, until = {found.inode for found in sockets.inet_sockets()}, time.monotonic() + LET_GO_S
    for pid in pids:
        if not inodes or time.monotonic() > until:
            return
        for inode, _pid, number in open_sockets([pid]):
            if inode in inodes:
                with contextlib.suppress(OSError), sockets.take(pid, number) as sock:  # it has ended
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    inodes.discard(inode)


@contextlib.contextmanager
def _shared(sock: socket.socket, root: int) -> Iterator[None]:
    owner = os.fstat(sock.fileno()).st_uid
    before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    os.fchown(sock.fileno(), root, -1)
    try:
        yield
    finally:
        os.fchown(sock.fileno(), owner, -1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, before)


def open_sockets(pids: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Each socket that a process has open: the socket's inode, the process, the number of the descriptor."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for number, path in procfs.open_files(pid).items():
                if path.startswith("socket:["):
                    yield int(path[len("socket:[") : -1]), pid, number


def _name(found: sockets.InetSocket) -> str:
    return f"{found.protocol} {found.port}"
