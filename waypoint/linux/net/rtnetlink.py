"""Interfaces, addresses and routes of a network namespace, by messages to the kernel (rtnetlink(7))."""

import os
import socket
import struct
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from waypoint.linux.net import netlink
from waypoint.linux.net.netlink import attribute

# linux/rtnetlink.h, linux/if_link.h, linux/veth.h, linux/if_addr.h
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg
_ADDRESS = struct.Struct("=BBBBI")  # struct ifaddrmsg
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg
_NEWLINK, _GETLINK, _NEWADDR, _NEWROUTE, _GETROUTE = 16, 18, 20, 24, 26
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK = 1, 3, 4, 5
_IFLA_OPERSTATE, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 16, 18, 28
_OPERATES = b"\x06"  # IF_OPER_UP
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_F_NODAD = 1, 2, 0x2
_RTA_DST, _RTA_OIF, _RTA_PREFSRC = 1, 4, 7
_TABLE_MAIN, _PROTOCOL_STATIC, _SCOPE_LINK, _SCOPE_UNIVERSE = 254, 4, 253, 0
_UNICAST, _LOCAL, _UNREACHABLE = 1, 2, 7
_KIND_AT = 7  # the field rtm_type of struct rtmsg
_IFF_UP, _IFF_NOARP = 0x1, 0x80
_BATCH = 64  # messages. The kernel drops answers that do not fit in the socket's buffer, which holds about 250.
# RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE
_RTMGRP_ADDRESSES = 0x10 | 0x40 | 0x100 | 0x400

UP_S = 5.0


class Prefix(NamedTuple):
    """The addresses whose first `bits` bits are those of `address`, which has four or sixteen bytes."""

    address: bytes
    bits: int

    @classmethod
    def parse(cls, text: str) -> "Prefix":
        """Parse a prefix such as `10.0.0.0/8`, or an address. The module ipaddress is not used: it takes 3 ms to
        import.
        """
        address, _, bits = text.partition("/")
        packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
        return cls(packed, int(bits) if bits else 8 * len(packed))

    @property
    def family(self) -> int:
        return socket.AF_INET if len(self.address) == 4 else socket.AF_INET6


def add_address(interface: int, network: Prefix) -> bytes:
    """The message that adds an address to the interface with index `interface`. It can be used at once, because the
    kernel does not check for duplicates (IFA_F_NODAD).
    """
    address = network.address
    body = _ADDRESS.pack(network.family, network.bits, _IFA_F_NODAD, 0, interface)
    body += attribute(_IFA_LOCAL, address) + attribute(_IFA_ADDRESS, address)
    return netlink.request(_NEWADDR, netlink.CREATE | netlink.REPLACE, body)


def bring_up(interface: int) -> bytes:
    """The message that brings an interface up."""
    return netlink.request(_NEWLINK, 0, _LINK.pack(0, 0, interface, _IFF_UP, _IFF_UP))


def add_route(to: Prefix, interface: int, source: Prefix | None = None) -> bytes:
    """The message that adds the route to `to` through an interface, or replaces the present route to `to`."""
    attributes = attribute(_RTA_OIF, struct.pack("=I", interface))
    attributes += attribute(_RTA_PREFSRC, source.address) if source is not None else b""
    return _route(to, _UNICAST, attributes)


def refuse(to: Prefix) -> bytes:
    """The message that adds an unreachable route: the kernel then refuses packets to `to` (EHOSTUNREACH)."""
    return _route(to, _UNREACHABLE, b"")


def _route(to: Prefix, kind: int, attributes: bytes) -> bytes:
    scope = _SCOPE_LINK if kind == _UNICAST else _SCOPE_UNIVERSE
    body = _ROUTE.pack(to.family, to.bits, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, scope, kind, 0)
    body += attribute(_RTA_DST, to.address) if to.bits else b""
    return netlink.request(_NEWROUTE, netlink.CREATE | netlink.REPLACE, body + attributes)


class PairEnd(NamedTuple):
    """One end of a veth pair: the interface's name, and its index (`number`) in its network namespace."""

    name: str
    number: int


def add_veth(own: PairEnd, peer: PairEnd, peer_namespace: int, hardware: bytes, mtu: int) -> bytes:
    """The message that makes a veth pair: `own` in this network namespace, `peer` in the one behind the descriptor
    `peer_namespace`. Both interfaces are down. They do not use ARP, so both must have the same hardware address,
    `hardware`. The kernel refuses the message (EEXIST) if an interface with the name of `own` exists.
    """

    def end(one: PairEnd, namespace: bytes = b"") -> bytes:
        name = attribute(_IFLA_IFNAME, one.name.encode() + b"\0") + attribute(_IFLA_ADDRESS, hardware)
        return (
            _LINK.pack(0, 0, one.number, _IFF_NOARP, _IFF_NOARP)
            + name
            + attribute(_IFLA_MTU, struct.pack("=I", mtu))
            + namespace
        )

    other = end(peer, attribute(_IFLA_NET_NS_FD, struct.pack("=i", peer_namespace)))
    veth = attribute(_INFO_KIND, b"veth\0") + attribute(_INFO_DATA, attribute(_VETH_PEER, other))
    return netlink.request(_NEWLINK, netlink.CREATE | netlink.EXCL, end(own) + attribute(_IFLA_LINKINFO, veth))


class RouteSocket:
    """A socket for messages to the network namespace in which it is created; other threads can use it too. Use it with
    `with`.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)

    def __enter__(self) -> "RouteSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def do(self, messages: Iterable[bytes]) -> None:
        """Send the messages to the kernel, which executes them in order. If messages fail, the others are still
        executed; then the OSError of the first failed message is raised.
        """
        batch, failed = list(messages), 0
        for place in range(0, len(batch), _BATCH):
            found = self._do(batch[place : place + _BATCH])
            failed = failed or found
        if failed:
            raise OSError(failed, os.strerror(failed))

    def _do(self, batch: list[bytes]) -> int:
        """Send the messages to the kernel in one call. Returns the errno of the first failed message; 0 if none
        fails.
        """
        self._socket.send(b"".join(batch))
        failed, left = 0, len(batch)
        while left:
            for kind, body in netlink.received(self._socket):
                if kind == netlink.ERROR:
                    left -= 1
                    failed = failed or -struct.unpack_from("=i", body)[0]
        return failed

    def local(self) -> list[Prefix]:
        """The addresses and networks whose packets this network namespace receives itself: the addresses of all
        interfaces and the routes of the type `local`.
        """
        bodies = netlink.dump(self._socket, _GETROUTE, bytes(_ROUTE.size))
        found = [(body, netlink.attributes(body[_ROUTE.size :])) for body in bodies if body[_KIND_AT] == _LOCAL]
        return [Prefix(one[_RTA_DST], body[1]) for body, one in found if _RTA_DST in one]

    def other_end(self, interface: int) -> int | None:
        """The index of the interface at the other end of a pair; None if there is no interface with this index."""
        found = self._link(interface)
        return None if found is None else int.from_bytes(found.get(_IFLA_LINK, b""), sys.byteorder)

    def wait_up(self, interface: int) -> None:
        """Wait until an interface that was brought up transmits packets. The kernel completes this asynchronously
        (linkwatch, Linux 6.8); packets sent earlier are lost. Raises TimeoutError after UP_S.
        """
        deadline = time.monotonic() + UP_S
        while (self._link(interface) or {}).get(_IFLA_OPERSTATE) != _OPERATES:
            if time.monotonic() > deadline:
                raise TimeoutError(f"interface {interface} is not up after {UP_S:g} s")
            time.sleep(0.001)

    def _link(self, interface: int) -> dict[int, bytes] | None:
        self._socket.send(netlink.request(_GETLINK, 0, _LINK.pack(0, 0, interface, 0, 0)))
        found = None
        while True:
            for kind, body in netlink.received(self._socket):
                if kind == netlink.ERROR:  # error 0 marks the end of the answer
                    return found
                found = netlink.attributes(body[_LINK.size :])


def address_changes() -> socket.socket:
    """A socket that becomes readable when an address or a route is added to or removed from the calling thread's
    network namespace.
    """
    found = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
    )
    found.bind((0, _RTMGRP_ADDRESSES))
    return found
