"""TCP connections of a network namespace: listing (sock_diag(7)) and resetting them (tcp(7), RFC 5961)."""

import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.net import sockets

# net/tcp_states.h: TCP_ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING
_STATES = sum(1 << state for state in (1, 4, 5, 8, 9, 11))
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2 = 1, 4, 5
_BEING_MADE = 1 << 3 | 1 << 12  # TCP_SYN_RECV, TCP_NEW_SYN_RECV
_PORTS = struct.Struct("!xBxxHH16s16s")  # from the beginning of struct inet_diag_msg on: the state, ports, addresses
_UNACKNOWLEDGED = struct.Struct("=60xI")  # its idiag_wqueue
_TCP_REPAIR, _TCP_REPAIR_QUEUE, _TCP_QUEUE_SEQ = 19, 20, 21  # linux/tcp.h
_RECEIVE_QUEUE, _OFF_WITHOUT_PROBE = 1, -1
_RST = 0x04
_MAPPED = bytes(10) + b"\xff\xff"


class TcpConnection(NamedTuple):
    """A TCP connection. `local`, `remote`: addresses of four (IPv4, also on an IPv6 socket) or sixteen bytes. `inode`:
    0 if no process has it open. `left`: the bytes that the peer has not acknowledged, if the program has closed the
    connection; else 0. `is_whole`: neither end has closed it.
    """

    local: bytes
    local_port: int
    remote: bytes
    remote_port: int
    inode: int
    left: int = 0
    is_whole: bool = False

    @property
    def is_inside(self) -> bool:
        """True if both ends are in one network namespace."""
        return self.remote == self.local or self.remote[:1] == b"\x7f" or self.remote == bytes(15) + b"\x01"

    @property
    def name(self) -> str:
        family = socket.AF_INET if len(self.remote) == 4 else socket.AF_INET6
        address = socket.inet_ntop(family, self.remote)
        return f"{address}:{self.remote_port}" if family == socket.AF_INET else f"[{address}]:{self.remote_port}"


def listed(table: socket.socket, states: int = _STATES) -> Iterator[TcpConnection]:
    """The connections in the network namespace of `table` (`sockets.open_table`). Raises OSError."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for body, inode in sockets.dump(table, family, socket.IPPROTO_TCP, states):
            state, local_port, remote_port, *ends = _PORTS.unpack_from(body)
            local, remote = (_shortened(family, end) for end in ends)
            left = 0
            if not inode and state != _FIN_WAIT2:  # the FIN, which is not acknowledged either, counts as a byte
                left = max(0, _UNACKNOWLEDGED.unpack_from(body)[0] - 1)
            yield TcpConnection(local, local_port, remote, remote_port, inode, left, state == _ESTABLISHED)


def outside(table: socket.socket) -> Iterator[TcpConnection]:
    """The connections to other machines in the network namespace of `table`."""
    return (one for one in listed(table) if not one.is_inside)


def without_other_end(table: socket.socket) -> Iterator[TcpConnection]:
    """The connections in the network namespace of `table` whose other end is missing there, or is on another machine.
    One whose server has not accepted it has both ends.
    """
    found = list(listed(table, _STATES | _BEING_MADE))
    ends = {(one.local, one.local_port, one.remote, one.remote_port) for one in found}
    for one in found:
        other_end = (one.remote, one.remote_port, one.local, one.local_port)
        if not one.is_inside or (one.is_whole and other_end not in ends):
            yield one


def _shortened(family: int, address: bytes) -> bytes:
    if family == socket.AF_INET:
        return address[:4]
    return address[12:] if address.startswith(_MAPPED) else address


def next_expected(connection: socket.socket) -> int:
    """The sequence number that the connection's socket expects next. Needs CAP_NET_ADMIN."""
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR_QUEUE, _RECEIVE_QUEUE)
        number: bytes = connection.getsockopt(socket.IPPROTO_TCP, _TCP_QUEUE_SEQ, 4)
        return int.from_bytes(number, sys.byteorder)
    finally:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _OFF_WITHOUT_PROBE)


def break_off(connection: TcpConnection, expected: int) -> None:
    """Send a reset to the local end of `connection`, as if from the remote end. `expected`: from `next_expected`. Call
    in the connection's network namespace, which needs a route to the remote end.
    """
    segment = struct.pack(
        "!HHIIBBHHH", connection.remote_port, connection.local_port, expected, 0, 5 << 4, _RST, 0, 0, 0
    )
    pseudo = connection.remote + connection.local + struct.pack("!II", len(segment), socket.IPPROTO_TCP)
    segment = segment[:16] + struct.pack("!H", _checksum(pseudo + segment)) + segment[18:]
    if len(connection.local) == 4:
        family, header = socket.AF_INET, struct.pack("!BBHHHBBH", 0x45, 0, 0, 0, 0, 64, socket.IPPROTO_TCP, 0)
    else:
        family, header = socket.AF_INET6, struct.pack("!IHBB", 6 << 28, len(segment), socket.IPPROTO_TCP, 64)
    packet = header + connection.remote + connection.local + segment
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        raw.sendto(packet, (socket.inet_ntop(family, connection.local), 0))


def _checksum(content: bytes) -> int:
    """The checksum of RFC 1071; `content` has an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(content) // 2}H", content))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
