"""The sockets of a network namespace, from the tables in /proc/net (proc_pid_net(5)) and from sock_diag(7)."""

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from waypoint.linux.net import netns
from waypoint.linux.tasks import pidfd

_TABLES = (("tcp", "tcp"), ("tcp", "tcp6"), ("udp", "udp"), ("udp", "udp6"))
_UNCONNECTED = ~(1 << 1) & 0xFFF  # of the states of a Unix socket all but TCP_ESTABLISHED (net/tcp_states.h)
_SIOCUNIXFILE = 0x89E0  # linux/un.h
_NETLINK_SOCK_DIAG, _BY_FAMILY, _DUMP_REQUEST = 4, 20, 0x301  # linux/sock_diag.h, linux/netlink.h
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_REQUEST = struct.Struct("=BBBBI")  # the beginning of struct inet_diag_req_v2
_ANY_SOCKET = bytes(48)  # the rest of that
_UNIX_REST = struct.pack("=II8x", 0, 1)  # of struct unix_diag_req: any inode, and the names (linux/unix_diag.h)
_UNIX_INODE, _ATTRIBUTE = struct.Struct("=4xI8x"), struct.Struct("=HH")  # struct unix_diag_msg, struct nlattr
_NAME = 0  # UNIX_DIAG_NAME
_PORT, _QUEUE = struct.Struct("!4xH"), struct.Struct("=56xI8xI")  # of struct inet_diag_msg
_PROTOCOLS = {"tcp": (socket.IPPROTO_TCP, 1 << 10), "udp": (socket.IPPROTO_UDP, 0xFFF)}  # those that listen; all
_MOST_OF_ANSWER = 1 << 16


class InetSocket(NamedTuple):
    """A socket with a local port. `inode`: the socket's number in /proc/PID/fd; 0 if no process has it open.
    `is_connection`: a TCP socket that does not listen.
    """

    protocol: str
    port: int
    inode: int
    is_connection: bool


_LISTEN = "0A"  # state of a TCP socket (net/tcp_states.h)


def listening(pid: int) -> list[InetSocket]:
    """The TCP sockets in the network namespace of the process `pid` that wait for connections."""
    try:
        table = open_table(pid)
    except OSError:  # an ordinary user may not enter it, and can wait
        return list(_listening_in_proc(pid))
    with table:
        return [
            InetSocket("tcp", _PORT.unpack_from(body)[0], inode, is_connection=False)
            for family in (socket.AF_INET, socket.AF_INET6)
            for body, inode in dump(table, family, *_PROTOCOLS["tcp"])
        ]


def _listening_in_proc(pid: int) -> Iterator[InetSocket]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/net/{name}") as table:
            next(table, "")
            for line in table:
                words = line.split()
                if words[3] == _LISTEN:
                    yield InetSocket("tcp", int(words[1].rpartition(":")[2], 16), int(words[9]), is_connection=False)


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
    """What waits at a socket for its program. `number`: of connections that are to be accepted at a TCP socket, of
    bytes that datagrams take at a UDP socket.
    """

    protocol: str
    port: int
    inode: int
    number: int


def take(pid: int, number: int) -> socket.socket:
    """A duplicate of the socket that is descriptor `number` of process `pid`. Raises OSError, also if it is no socket:
    the process may have put something else there.
    """
    fd = pidfd.take(pid, number)
    try:
        return socket.socket(fileno=fd)
    except BaseException:
        os.close(fd)
        raise


def open_table(pid: int) -> socket.socket:
    """What `unread` asks: the kernel's list of the sockets in the network namespace of process `pid` (sock_diag(7)).
    /proc/net would be searched for 10 ms. Raises ProcessLookupError if the process has ended, OSError.
    """
    return netns.work_in(pid, open_own_table)


def open_own_table() -> socket.socket:
    """`open_table` of the calling thread's network namespace. Raises OSError."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)


def unread(table: socket.socket, protocols: Collection[str] = ("tcp", "udp")) -> Iterator[Unread]:
    """What waits in the network namespace of `table`. Costs 0.1 milliseconds for each protocol. Raises OSError."""
    for protocol in protocols:
        number, states = _PROTOCOLS[protocol]
        for family in (socket.AF_INET, socket.AF_INET6):
            for body, inode in dump(table, family, number, states):
                (port,), (waiting, _) = _PORT.unpack_from(body), _QUEUE.unpack_from(body)
                if waiting:
                    yield Unread(protocol, port, inode, waiting)


def dump(table: socket.socket, family: int, protocol: int, states: int) -> Iterator[tuple[bytes, int]]:
    """The struct inet_diag_msg, and the inode, of each socket in one of `states` (a bit for each). Raises OSError."""
    for body in _dump(table, _REQUEST.pack(family, protocol, 0, 0, states) + _ANY_SOCKET):
        yield body, _QUEUE.unpack_from(body)[1]


def _dump(table: socket.socket, request: bytes) -> Iterator[bytes]:
    table.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP_REQUEST, 0, 0) + request)
    while True:
        answer, place = table.recv(_MOST_OF_ANSWER), 0
        while place < len(answer):
            size, kind, *_ = _HEADER.unpack_from(answer, place)
            if kind != _BY_FAMILY:  # the end, or an error: such as a kernel without this protocol
                return
            yield answer[place + _HEADER.size : place + size]
            place += size + -size % 4


def shares_network(pid: int) -> bool:
    """Whether process `pid` has the caller's network namespace. Raises FileNotFoundError if it has ended."""
    return os.path.samestat(os.stat(f"/proc/{pid}/ns/net"), os.stat("/proc/self/ns/net"))


def open_file_of(unix_socket: int) -> int:
    """An O_PATH descriptor of the file that a Unix socket is bound to (SIOCUNIXFILE). Raises OSError."""
    return fcntl.ioctl(unix_socket, _SIOCUNIXFILE)


def bound_names(table: socket.socket) -> dict[int, str]:
    """The paths, relative ones too, to which Unix sockets that nobody is connected to were bound, by the sockets'
    inodes, in the network namespace of `table`. Sockets without a file are left out. (In /proc/net/unix a name with a
    line feed would be read as further sockets.) Raises OSError.
    """
    found = {}
    for body in _dump(table, _REQUEST.pack(socket.AF_UNIX, 0, 0, 0, _UNCONNECTED) + _UNIX_REST):
        if name := _name_in(body).partition(b"\0")[0]:
            found[_UNIX_INODE.unpack_from(body)[0]] = os.fsdecode(name)
    return found


def _name_in(body: bytes) -> bytes:
    """The name of a Unix socket, which begins with a NUL if no file has it; b"" if the socket has none."""
    place = _UNIX_INODE.size
    while place < len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, place)
        if kind == _NAME:
            return body[place + _ATTRIBUTE.size : place + size]
        place += size + -size % 4
    return b""
