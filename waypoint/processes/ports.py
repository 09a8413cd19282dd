"""TCP and UDP ports of processes.

On the host's network, a process that uses a port cannot be restored while the original process still runs. CRIU does
not report that reliably: restored sockets keep SO_REUSEPORT, so both processes would share the port, and each would get
a part of the connections.
"""

import contextlib
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from waypoint.linux.net import sockets, unix_sockets
from waypoint.linux.net.tcp_connections import TcpConnection
from waypoint.linux.tasks import procfs
from waypoint.model.conditions import Degradation, degradation

_OF_CRIU = b"\0crtools-"  # the sockets by which a dumping CRIU talks to its code in the processes
_USED, _WAITING = "outside-socket", "unaccepted-connections"
_UNREAD = {"tcp": "unaccepted-connections", "udp": "unread-datagrams"}


class HeldPorts(NamedTuple):
    """Ports in the form `tcp 8000`, sorted. `bound`: those that restored processes must bind. `connections`: those of
    TCP connections, which are closed in restored sessions.
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
    """The ports in `ports` that a process other than the processes `leaving` has open now, at any address of the
    caller's network namespace.
    """
    spared = {0, *(inode for inode, _pid, _number in open_sockets(leaving))}  # 0: a socket that no process has open
    return sorted({_name(found) for found in sockets.inet_sockets() if found.inode not in spared}.intersection(ports))


def unread(table: socket.socket, pids: Collection[int], *, share_network: bool) -> list[Degradation]:
    """Unaccepted connections and unread datagrams, which images lack: one degradation for each port.

    `table`: lists the sockets in the network namespace of the processes (`sockets.open_table`). `share_network`: other
    processes use this namespace, too, so their sockets are left out.
    """
    waiting = list(sockets.unread(table))
    if waiting and share_network:
        inodes = {inode for inode, _pid, _number in open_sockets(pids)}
        waiting = [one for one in waiting if one.inode in inodes]
    found = [degradation(_UNREAD[one.protocol], f"{one.protocol} {one.port}", str(one.number)) for one in waiting]
    return sorted(found, key=lambda one: one.subject)


def outside(connections: Iterable[TcpConnection]) -> list[Degradation]:
    """The remote ends of connections to other machines."""
    found = {one.name for one in connections if not one.is_inside}
    return [degradation("outside-connection", name) for name in sorted(found)]


def unsent(connections: Collection[TcpConnection]) -> list[Degradation]:
    """The connections within a session that one program has closed, and for whose last bytes the other program had no
    room yet. No process has such a socket open, so images lack it. `connections`: all of the session.
    """
    ends = {(one.local, one.local_port, one.remote, one.remote_port) for one in connections if one.inode}
    lost = [one for one in connections if one.left]
    lost = [one for one in lost if (one.remote, one.remote_port, one.local, one.local_port) in ends]
    found = [
        degradation("unsent-data", f"tcp {one.local_port} to tcp {one.remote_port}", str(one.left)) for one in lost
    ]
    return sorted(found, key=lambda one: one.subject)


def outside_unix(table: socket.socket, pids: Collection[int]) -> list[Degradation]:
    """The connections of the processes through Unix sockets of which no process of the session has the other side open,
    and unaccepted connections whose client is outside the session or has closed them.
    """
    found = {one.inode: one for one in unix_sockets.connections(table)}
    if not found:
        return []
    criu = {0, *(one.inode for one in found.values() if one.name.startswith(_OF_CRIU))}
    who = {inode: (pid, number) for inode, pid, number in open_sockets(pids)}
    ours = [one for one in found.values() if one.inode in who]
    lost = [(one, _USED) for one in ours if one.peer not in criu and one.peer not in who]
    lost += [(one, _WAITING) for one in ours if any(peer not in who for peer in one.waiting)]
    return [found for one, code in lost for found in _named(code, *who[one.inode], one.waiting, who)]


def _named(code: str, pid: int, number: int, waiting: Iterable[int], inside: Collection[int]) -> Iterator[Degradation]:
    with contextlib.suppress(ProcessLookupError):
        who = f"{procfs.stat(pid).name} (pid {procfs.inner_pid(pid)}, fd {number}, a Unix socket)"
        yield degradation(code, who, str(sum(peer not in inside for peer in waiting)) if code == _WAITING else "")


@contextlib.contextmanager
def shared(pids: Iterable[int], root: int) -> Iterator[None]:
    """In the `with` block, let a CRIU bind the ports of the processes although they are in use. `root`: the host's id
    for the root of the user namespace that CRIU restores.

    CRIU sets SO_REUSEPORT on the sockets that it binds. The kernel lets two sockets share a port if both have this
    option and the same owner, so the sockets of the processes get the option and the owner `root` for the block. The
    processes must be frozen. New connections may reach either side.
    """
    inodes = {found.inode for found in sockets.inet_sockets()}
    with contextlib.ExitStack() as undoing:
        for inode, pid, number in open_sockets(pids):
            if inode in inodes:
                sock = undoing.enter_context(sockets.take(pid, number))
                undoing.enter_context(_shared(sock, root))
        yield


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
    """Each open socket of the processes: its inode, the pid, the number of the descriptor."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for number, path in procfs.open_files(pid).items():
                if path.startswith("socket:["):
                    yield int(path[len("socket:[") : -1]), pid, number


def _name(found: sockets.InetSocket) -> str:
    return f"{found.protocol} {found.port}"
