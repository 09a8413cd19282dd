"""Packing and parsing of netlink(7) messages, for rtnetlink(7) (`rtnetlink`) and sock_diag(7) (`sockets`).

docs/dependencies.md says why this is not pyroute2.
"""

import socket
import struct

# linux/netlink.h
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_SIZE_AND_KIND = struct.Struct("=IH")  # its first two fields
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
REPLACE, EXCL, CREATE = 0x100, 0x200, 0x400
ERROR, _DONE = 2, 3
_MAX_ANSWER_BYTES = 1 << 16


def request(kind: int, flags: int, body: bytes) -> bytes:
    """A message that the kernel answers by a message of kind ERROR at the end, with error number 0 for success."""
    return _packed(kind, _REQUEST | _ACK | flags, body)


def received(netlink: socket.socket) -> list[tuple[int, bytes]]:
    """Wait for an answer of the kernel. Returns kind and body of each message in it."""
    answer = netlink.recv(_MAX_ANSWER_BYTES)
    found = []
    position = 0
    while position < len(answer):
        size, kind = _SIZE_AND_KIND.unpack_from(answer, position)
        found.append((kind, answer[position + _HEADER.size : position + size]))
        position += size + -size % 4
    return found


def dump(netlink: socket.socket, kind: int, body: bytes) -> list[bytes]:
    """Ask the kernel for a list. Returns the bodies of its messages; after an error, those that came before it.

    The answer is read to its end, because the next request on the socket would get the rest.
    """
    netlink.send(_packed(kind, _REQUEST | _DUMP, body))
    found: list[bytes] = []
    while True:
        for answer_kind, answer in received(netlink):
            if answer_kind in (_DONE, ERROR):
                return found
            found.append(answer)


def attribute(kind: int, content: bytes) -> bytes:
    size = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(size, kind) + content + bytes(-size % 4)


def attributes(content: bytes) -> dict[int, bytes]:
    found = {}
    position = 0
    while position < len(content):
        size, kind = _ATTRIBUTE.unpack_from(content, position)
        found[kind] = content[position + _ATTRIBUTE.size : position + size]
        position += size + -size % 4
    return found


def _packed(kind: int, flags: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 0, 0) + body
