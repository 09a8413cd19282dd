"""The connections of Unix sockets in a network namespace, from sock_diag(7)."""

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from waypoint.linux.net import netlink

_BY_FAMILY = 20  # linux/sock_diag.h
_REQUEST = struct.Struct("=BBHIIIII")  # linux/unix_diag.h, struct unix_diag_req: family, ..., states, inode, show, ...
_MESSAGE = struct.Struct("=BBBxI8x")  # struct unix_diag_msg: family, type, state, inode
_NAME, _PEER, _WAITING = 0, 2, 3  # UNIX_DIAG_NAME, _PEER, _ICONS
_SHOW = 1 << 0 | 1 << 2 | 1 << 3
_CONNECTED, _LISTENING = 1, 10  # TCP_ESTABLISHED, TCP_LISTEN


class UnixSocket(NamedTuple):
    """A connected or listening stream or seqpacket socket. `inode`: the socket's number in /proc/PID/fd. `peer`: the
    inode of the other side; 0 if it is closed, or not accepted yet. `waiting`: the inodes of the other sides of the
    connections that are not accepted yet, 0 for those that are closed.
    """

    inode: int
    name: bytes
    peer: int = 0
    waiting: tuple[int, ...] = ()


def connections(table: socket.socket) -> Iterator[UnixSocket]:
    """The sockets in the network namespace of `table` (`sockets.open_table`)."""
    states = 1 << _CONNECTED | 1 << _LISTENING
    for body in netlink.dump(table, _BY_FAMILY, _REQUEST.pack(socket.AF_UNIX, 0, 0, states, 0, _SHOW, 0, 0)):
        _, kind, _, inode = _MESSAGE.unpack_from(body)
        if kind != socket.SOCK_DGRAM:
            found = netlink.attributes(body[_MESSAGE.size :])
            peer = int.from_bytes(found.get(_PEER, b""), "little")
            waiting = struct.unpack(f"={len(found.get(_WAITING, b'')) // 4}I", found.get(_WAITING, b""))
            yield UnixSocket(inode, found.get(_NAME, b""), peer, waiting)
