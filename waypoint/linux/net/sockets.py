"""The sockets of a network namespace, from the tables in /proc/net (proc_pid_net(5)) and from sock_diag(7)."""

import contextlib
import fcntl
import os
import select
import socket
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from waypoint.linux.net import netlink, netns
from waypoint.linux.tasks import pidfd

_TABLES = (("tcp", "tcp"), ("tcp", "tcp6"), ("udp", "udp"), ("udp", "udp6"))
_UNCONNECTED = "01"
_DATAGRAMS = "0002"
_UDP_CORK = 1  # linux/udp.h
_SIOCUNIXFILE = 0x89E0  # linux/un.h
_NETLINK_SOCK_DIAG, _BY_FAMILY = 4, 20  # linux/netlink.h, linux/sock_diag.h
_REQUEST = struct.Struct("=BBBBI")  # the beginning of struct inet_diag_req_v2
_SOCKET_ID_BYTES = 48
_PORT, _QUEUE = struct.Struct("!4xH"), struct.Struct("=56xI8xI")  # fields of struct inet_diag_msg
# By protocol: its number, and the states of the sockets to list as bits: for TCP only listening ones, for UDP all.
_PROTOCOLS = {"tcp": (socket.IPPROTO_TCP, 1 << 10), "udp": (socket.IPPROTO_UDP, 0xFFF)}


class InetSocket(NamedTuple):
    """A socket with a local port. `inode`: the socket's number in /proc/PID/fd; 0 if no process has it open.
    `is_connection`: a TCP socket that does not listen.
    """

    protocol: str
    port: int
    inode: int
    is_connection: bool


_LISTEN = "0A"  # state of a TCP socket (net/tcp_states.h)


def inet_sockets() -> Iterator[InetSocket]:
    """All TCP and UDP sockets of the caller's network namespace."""
    for protocol, name in _TABLES:
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{name}") as table:  # a kernel without IPv6
            next(table, "")
            for line in table:
                words = line.split()
                is_connection = protocol == "tcp" and words[3] != _LISTEN
                yield InetSocket(protocol, int(words[1].rpartition(":")[2], 16), int(words[9]), is_connection)


class Unread(NamedTuple):
    """Connections or data that the program of a socket has not read yet. `number`: of a TCP socket, the connections
    that are not accepted; of a UDP socket, the bytes of the unread datagrams.
    """

    protocol: str
    port: int
    inode: int
    number: int


def take(pid: int, number: int) -> socket.socket:
    """A duplicate of the socket that is descriptor `number` of process `pid`. Raises OSError, also if the descriptor is
    not a socket (any more).
    """
    fd = pidfd.take(pid, number)
    try:
        return socket.socket(fileno=fd)
    except BaseException:
        os.close(fd)
        raise


def is_corked(pid: int, number: int) -> bool:
    """Whether the UDP socket that is descriptor `number` of process `pid` holds data back (udp(7), UDP_CORK). Raises
    OSError.
    """
    with take(pid, number) as sock:
        return bool(sock.getsockopt(socket.IPPROTO_UDP, _UDP_CORK))


def has_unread(pid: int, number: int) -> bool:
    """Whether the socket that is descriptor `number` of process `pid` has messages to read. Raises OSError."""
    with take(pid, number) as sock:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))


def open_table(pid: int) -> socket.socket:
    """Open a sock_diag(7) socket, for `unread` and `dump`, which list the sockets in the network namespace of process
    `pid`. Reading /proc/net instead would take 10 ms. Raises ProcessLookupError if the process has ended; OSError.
    """
    return netns.work_in(pid, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG))


def unread(table: socket.socket, protocols: Collection[str] = ("tcp", "udp")) -> Iterator[Unread]:
    """The sockets in the network namespace of `table` with unread data. Takes 0.1 ms for each protocol."""
    for protocol in protocols:
        number, states = _PROTOCOLS[protocol]
        for family in (socket.AF_INET, socket.AF_INET6):
            for body, inode in dump(table, family, number, states):
                (port,), (waiting, _) = _PORT.unpack_from(body), _QUEUE.unpack_from(body)
                if waiting:
                    yield Unread(protocol, port, inode, waiting)


def listening(pid: int) -> dict[int, int]:
    """The ports of the TCP sockets in the network namespace of process `pid` that wait for connections, by the inodes
    of the sockets. Empty if the process has ended.
    """
    found: dict[int, int] = {}
    number, states = _PROTOCOLS["tcp"]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open_table(pid) as table:
        for family in (socket.AF_INET, socket.AF_INET6):
            found |= {inode: _PORT.unpack_from(body)[0] for body, inode in dump(table, family, number, states)}
    return found


def dump(table: socket.socket, family: int, protocol: int, states: int) -> Iterator[tuple[bytes, int]]:
    """The struct inet_diag_msg and the inode of each socket in one of `states` (a bit mask). Yields nothing if the
    kernel lacks the protocol.
    """
    request = _REQUEST.pack(family, protocol, 0, 0, states) + bytes(_SOCKET_ID_BYTES)
    for body in netlink.dump(table, _BY_FAMILY, request):
        yield body, _QUEUE.unpack_from(body)[1]


def has_tcp(pid: int) -> bool:
    """Whether the network namespace of process `pid` has a TCP socket that listens or is connected. Takes 0.05 ms; the
    list of the connections takes 2 ms, because the kernel walks the tables of the whole machine. Raises OSError if the
    process has ended.
    """
    for name in ("sockstat", "sockstat6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/net/{name}") as counts:  # without IPv6
            for line in counts:
                if line.startswith(("TCP: inuse ", "TCP6: inuse ")) and line.split()[2] != "0":
                    return True
    return False


def shares_network(pid: int) -> bool:
    """Whether process `pid` is in the caller's network namespace. Raises FileNotFoundError if it has ended."""
    return os.path.samestat(os.stat(f"/proc/{pid}/ns/net"), os.stat("/proc/self/ns/net"))


def open_file_of(unix_socket: int) -> int:
    """An O_PATH descriptor of the file that a Unix socket is bound to (SIOCUNIXFILE)."""
    return fcntl.ioctl(unix_socket, _SIOCUNIXFILE)


def bound_names(pid: int) -> dict[int, str]:
    """The paths, absolute or relative, to which the unconnected Unix sockets in the network namespace of process `pid`
    were bound, by the sockets' inodes. Sockets without a file are left out. Empty if the process has ended.
    """
    found = {}
    missing = contextlib.suppress(FileNotFoundError, ProcessLookupError)
    with missing, open(f"/proc/{pid}/net/unix", errors="surrogateescape") as table:
        for line in table:
            words = line.rstrip("\n").split(maxsplit=7)
            if len(words) == 8 and words[5] == _UNCONNECTED and not words[7].startswith("@"):
                found[int(words[6])] = words[7]
    return found


def has_other_senders(pid: int, inode: int) -> bool:
    """Return True if the network namespace of process `pid` has a Unix datagram socket, besides `inode`, with an
    abstract name, or with a path and not connected.
    """
    with open(f"/proc/{pid}/net/unix", errors="surrogateescape") as table:
        rows = (line.split(maxsplit=7) for line in table)
        named = (row for row in rows if len(row) == 8 and row[4] == _DATAGRAMS and row[6] != str(inode))
        return any(row[7].startswith("@") or row[5] == _UNCONNECTED for row in named)
