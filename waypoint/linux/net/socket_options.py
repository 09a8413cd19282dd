"""Options of sockets that CRIU's images lack: socket(7), ip(7), ipv6(7), tcp(7), udp(7), netlink(7), packet(7).

The table lacks what cannot be read or set, what the kernel changes by itself (TCP_QUICKACK, SO_TXREHASH), and what CRIU
keeps (criu/{sockets,sk-inet,sk-tcp,sk-packet}.c).
"""

import errno
import fcntl
import functools
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.calls import libc
from waypoint.linux.net import netns

_SOCKET, _IP, _IPV6, _TCP, _UDP, _RAW6 = 1, 0, 41, 6, 17, 255
_PACKET, _NETLINK = 263, 270
_HEADER_BYTES = 1024  # of an extension header of IPv6; Python reads no more
# By the kernel's name: level, number, and the size of the value in bytes. In the order in which they are set.
_OPTIONS = {
    "SO_TIMESTAMP": (_SOCKET, 29, 4),
    "SO_TIMESTAMPNS": (_SOCKET, 35, 4),
    "SO_TIMESTAMPING": (_SOCKET, 37, 8),
    "SO_TIMESTAMP_NEW": (_SOCKET, 63, 4),
    "SO_TIMESTAMPNS_NEW": (_SOCKET, 64, 4),
    "SO_TIMESTAMPING_NEW": (_SOCKET, 65, 8),
    "SO_RXQ_OVFL": (_SOCKET, 40, 4),
    "SO_WIFI_STATUS": (_SOCKET, 41, 4),
    "SO_PEEK_OFF": (_SOCKET, 42, 4),
    "SO_NOFCS": (_SOCKET, 43, 4),
    "SO_SELECT_ERR_QUEUE": (_SOCKET, 45, 4),
    "SO_BUSY_POLL": (_SOCKET, 46, 4),
    "SO_MAX_PACING_RATE": (_SOCKET, 47, 8),
    "SO_ZEROCOPY": (_SOCKET, 60, 4),
    "SO_TXTIME": (_SOCKET, 61, 8),
    "SO_PREFER_BUSY_POLL": (_SOCKET, 69, 4),
    "SO_BUSY_POLL_BUDGET": (_SOCKET, 70, 4),
    "SO_RESERVE_MEM": (_SOCKET, 73, 4),
    "SO_RCVMARK": (_SOCKET, 75, 4),
    "SO_PASSPIDFD": (_SOCKET, 76, 4),
    "SO_RCVPRIORITY": (_SOCKET, 82, 4),
    "SO_PASSRIGHTS": (_SOCKET, 83, 4),
    "IP_TOS": (_IP, 1, 4),
    "IP_TTL": (_IP, 2, 4),
    "IP_OPTIONS": (_IP, 4, 40),
    "IP_RECVOPTS": (_IP, 6, 4),
    "IP_RETOPTS": (_IP, 7, 4),
    "IP_PKTINFO": (_IP, 8, 4),
    "IP_MTU_DISCOVER": (_IP, 10, 4),
    "IP_RECVERR": (_IP, 11, 4),
    "IP_RECVTTL": (_IP, 12, 4),
    "IP_RECVTOS": (_IP, 13, 4),
    "IP_PASSSEC": (_IP, 18, 4),
    "IP_TRANSPARENT": (_IP, 19, 4),
    "IP_RECVORIGDSTADDR": (_IP, 20, 4),
    "IP_MINTTL": (_IP, 21, 4),
    "IP_CHECKSUM": (_IP, 23, 4),
    "IP_BIND_ADDRESS_NO_PORT": (_IP, 24, 4),
    "IP_RECVFRAGSIZE": (_IP, 25, 4),
    "IP_RECVERR_RFC4884": (_IP, 26, 4),
    "IP_MULTICAST_IF": (_IP, 32, 4),
    "IP_MULTICAST_TTL": (_IP, 33, 4),
    "IP_MULTICAST_LOOP": (_IP, 34, 4),
    "IP_MULTICAST_ALL": (_IP, 49, 4),
    "IP_UNICAST_IF": (_IP, 50, 4),
    "IP_LOCAL_PORT_RANGE": (_IP, 51, 4),
    "IPV6_UNICAST_HOPS": (_IPV6, 16, 4),
    "IPV6_MULTICAST_IF": (_IPV6, 17, 4),
    "IPV6_MULTICAST_HOPS": (_IPV6, 18, 4),
    "IPV6_MULTICAST_LOOP": (_IPV6, 19, 4),
    "IPV6_MTU_DISCOVER": (_IPV6, 23, 4),
    "IPV6_RECVERR": (_IPV6, 25, 4),
    "IPV6_MULTICAST_ALL": (_IPV6, 29, 4),
    "IPV6_RECVERR_RFC4884": (_IPV6, 31, 4),
    "IPV6_FLOWINFO_SEND": (_IPV6, 33, 4),
    "IPV6_RECVHOPLIMIT": (_IPV6, 51, 4),
    "IPV6_RECVHOPOPTS": (_IPV6, 53, 4),
    "IPV6_HOPOPTS": (_IPV6, 54, _HEADER_BYTES),
    "IPV6_RTHDRDSTOPTS": (_IPV6, 55, _HEADER_BYTES),
    "IPV6_RECVRTHDR": (_IPV6, 56, 4),
    "IPV6_RTHDR": (_IPV6, 57, _HEADER_BYTES),
    "IPV6_RECVDSTOPTS": (_IPV6, 58, 4),
    "IPV6_DSTOPTS": (_IPV6, 59, _HEADER_BYTES),
    "IPV6_RECVPATHMTU": (_IPV6, 60, 4),
    "IPV6_DONTFRAG": (_IPV6, 62, 4),
    "IPV6_RECVTCLASS": (_IPV6, 66, 4),
    "IPV6_TCLASS": (_IPV6, 67, 4),
    "IPV6_AUTOFLOWLABEL": (_IPV6, 70, 4),
    "IPV6_ADDR_PREFERENCES": (_IPV6, 72, 4),
    "IPV6_MINHOPCOUNT": (_IPV6, 73, 4),
    "IPV6_RECVORIGDSTADDR": (_IPV6, 74, 4),
    "IPV6_TRANSPARENT": (_IPV6, 75, 4),
    "IPV6_UNICAST_IF": (_IPV6, 76, 4),
    "IPV6_RECVFRAGSIZE": (_IPV6, 77, 4),
    "IPV6_CHECKSUM": (_RAW6, 7, 4),
    "TCP_MAXSEG": (_TCP, 2, 4),
    "TCP_SYNCNT": (_TCP, 7, 4),
    "TCP_LINGER2": (_TCP, 8, 4),
    "TCP_DEFER_ACCEPT": (_TCP, 9, 4),
    "TCP_WINDOW_CLAMP": (_TCP, 10, 4),
    "TCP_CONGESTION": (_TCP, 13, 16),
    "TCP_THIN_LINEAR_TIMEOUTS": (_TCP, 16, 4),
    "TCP_USER_TIMEOUT": (_TCP, 18, 4),
    "TCP_FASTOPEN": (_TCP, 23, 4),
    "TCP_NOTSENT_LOWAT": (_TCP, 25, 4),
    "TCP_SAVE_SYN": (_TCP, 27, 4),
    "TCP_FASTOPEN_CONNECT": (_TCP, 30, 4),
    "TCP_FASTOPEN_NO_COOKIE": (_TCP, 34, 4),
    "TCP_INQ": (_TCP, 36, 4),
    "TCP_TX_DELAY": (_TCP, 37, 4),
    "TCP_RTO_MAX_MS": (_TCP, 44, 4),
    "UDP_ENCAP": (_UDP, 100, 4),
    "UDP_NO_CHECK6_TX": (_UDP, 101, 4),
    "UDP_NO_CHECK6_RX": (_UDP, 102, 4),
    "UDP_SEGMENT": (_UDP, 103, 4),
    "UDP_GRO": (_UDP, 104, 4),
    "NETLINK_PKTINFO": (_NETLINK, 3, 4),
    "NETLINK_BROADCAST_ERROR": (_NETLINK, 4, 4),
    "NETLINK_NO_ENOBUFS": (_NETLINK, 5, 4),
    "NETLINK_CAP_ACK": (_NETLINK, 10, 4),
    "NETLINK_EXT_ACK": (_NETLINK, 11, 4),
    "NETLINK_GET_STRICT_CHK": (_NETLINK, 12, 4),
    "PACKET_QDISC_BYPASS": (_PACKET, 20, 4),
    "PACKET_IGNORE_OUTGOING": (_PACKET, 23, 4),
    "SO_LOCK_FILTER": (_SOCKET, 44, 4),
}
# Of a connection the kernel gives what it uses, and CRIU keeps that.
_OF_UNCONNECTED = frozenset({"TCP_MAXSEG", "TCP_WINDOW_CLAMP"})
# Those that need CAP_NET_ADMIN or CAP_NET_RAW, or allow more to a caller that has it.
_OF_ADMIN = frozenset(
    {
        "IP_OPTIONS",
        "IP_TRANSPARENT",
        "IPV6_DSTOPTS",
        "IPV6_HOPOPTS",
        "IPV6_RTHDRDSTOPTS",
        "IPV6_TRANSPARENT",
        "SO_BUSY_POLL",
        "SO_BUSY_POLL_BUDGET",
        "SO_PREFER_BUSY_POLL",
        "SO_RCVMARK",
        "SO_TXTIME",
        "TCP_CONGESTION",
    }
)
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET)

_JOIN, _FILTER = 42, 48  # MCAST_JOIN_GROUP, MCAST_MSFILTER (linux/in.h)
_GROUP_BYTES = 136  # struct group_req: the interface's index, and the group as struct sockaddr_storage
_MOST_SOURCES = 64
_FILTER_BYTES = 144 + 128 * _MOST_SOURCES  # struct group_filter: the same, the mode, the number of sources, and these
_INDEX = struct.Struct("=I")
_MODE = struct.Struct("=136xII")
_EVERY_SOURCE = (0, 0)  # MCAST_EXCLUDE no source
# Groups of which every interface is a member: 224.0.0.1; all nodes and solicited nodes of IPv6.
_OF_ALL_HOSTS = "010000E0"
_OF_ALL_NODES = ("ff010000000000000000000000000001", "ff020000000000000000000000000001")
_OF_SOLICITED = "ff0200000000000000000001ff"
_IFREQ = struct.Struct("16sI20x")
_SIOCGIFINDEX = 0x8933


class Group(NamedTuple):
    """A multicast group that a socket of a network namespace has joined. `device`: the interface's name."""

    level: int
    interface: int
    device: str
    address: bytes  # struct sockaddr


def differing(sock: socket.socket) -> dict[str, bytes]:
    """The options whose values differ from those of a new socket, by name."""
    usual = _usual(sock.family, sock.type, sock.proto)
    found = {}
    for name, value in usual.items():
        level, number, size = _OPTIONS[name]
        try:
            now = sock.getsockopt(level, number, size)
        except OSError:  # not in this state of the socket
            continue
        if now != value and not (name in _OF_UNCONNECTED and _is_connected(sock)):
            found[name] = now
    return found


def give(sock: socket.socket, name: str, value: bytes) -> None:
    """Set the option, if it has another value. Raises OSError, also for an option that only an administrator of the
    caller's network namespace could set, if the socket is there; KeyError for an unknown name.
    """
    level, number, size = _OPTIONS[name]
    if sock.getsockopt(level, number, size) == value:
        return
    if name in _OF_ADMIN and netns.is_own(sock):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    sock.setsockopt(level, number, value)


def groups(pid: int) -> list[Group]:
    """The multicast groups that sockets in the network namespace of process `pid` may have joined. Raises OSError."""
    found = []
    device = index = ""
    for first, second, *rest in _lines(pid, "igmp"):
        if len(rest) > 2:  # the line of an interface, before those of its groups
            index, device = first, second
        elif index and first != _OF_ALL_HOSTS:
            packed = struct.pack("=HxxI8x", socket.AF_INET, int(first, 16))
            found.append(Group(_IP, int(index), device, packed))
    for index, device, group, *_ in _lines(pid, "igmp6"):
        if group not in _OF_ALL_NODES and not group.startswith(_OF_SOLICITED):
            packed = struct.pack("=H6x16s4x", socket.AF_INET6, bytes.fromhex(group))
            found.append(Group(_IPV6, int(index), device, packed))
    return found


def filter_of(sock: socket.socket, group: Group) -> bytes:
    """From which senders the socket gets what is sent to the group, for `join`; b"" if it has not joined the group."""
    wanted = _INDEX.pack(group.interface) + bytes(4) + group.address.ljust(_GROUP_BYTES - 8, b"\0")
    buffer = bytearray((wanted + struct.pack("=II", 0, _MOST_SOURCES)).ljust(_FILTER_BYTES, b"\0"))
    try:
        size = libc.get_option(sock.fileno(), group.level, _FILTER, buffer)
    except OSError:
        return b""
    return bytes(buffer[8:size])


def join(sock: socket.socket, level: int, device: str, kept: bytes) -> None:
    """Join the group from which `filter_of` got `kept`, on the interface `device`. Raises OSError."""
    index = _IFREQ.unpack(fcntl.ioctl(sock, _SIOCGIFINDEX, _IFREQ.pack(os.fsencode(device), 0)))[1]
    whole = _INDEX.pack(index) + bytes(4) + kept
    sock.setsockopt(level, _JOIN, whole[:_GROUP_BYTES])
    if _MODE.unpack_from(whole) != _EVERY_SOURCE:
        sock.setsockopt(level, _FILTER, whole)


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


@functools.cache
def _usual(family: int, kind: int, protocol: int) -> dict[str, bytes]:
    """The values of a new socket, of the options that such sockets have."""
    if family not in _FAMILIES:
        return {}
    found = {}
    try:
        new = socket.socket(family, kind, protocol)
    except OSError:  # a ping socket, which net.ipv4.ping_group_range forbids to the daemon
        return _usual(family, kind, 0) if protocol else {}
    with new:
        for name, (level, number, size) in _OPTIONS.items():
            if kind == socket.SOCK_STREAM and "MULTICAST" in name:  # without effect; the kernel changes them
                continue
            try:
                found[name] = new.getsockopt(level, number, size)
            except OSError:  # the kernel is older, or the option belongs to another kind of sockets
                continue
    return found


def _lines(pid: int, table: str) -> Iterator[list[str]]:
    try:
        with open(f"/proc/{pid}/net/{table}") as file:
            for line in file:
                if words := line.split():
                    yield words
    except FileNotFoundError:  # a kernel without IPv6, or without multicast
        return
