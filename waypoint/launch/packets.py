"""Packets with descriptors on the launcher's SOCK_SEQPACKET sockets."""

import array
import os
import socket

import msgspec

from waypoint.launch.spec import LaunchAnswer

MAX_REQUEST_BYTES = 4 << 20
_MAX_FDS = 6


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next packet and its descriptors, which are close-on-exec. The packet is empty if the other end was
    closed.
    """
    room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
    request, ancillary, _flags, _address = sock.recvmsg(MAX_REQUEST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return request, list(fds)


def answer(reply: int, launched: LaunchAnswer, handles: list[int]) -> None:
    """Send `launched` and the descriptors `handles` on the socket with the descriptor `reply`."""
    with socket.socket(fileno=os.dup(reply)) as sock:
        socket.send_fds(sock, [msgspec.json.encode(launched)], handles)


def failure(error: BaseException) -> LaunchAnswer:
    if isinstance(error, OSError):
        path = os.fsdecode(error.filename) if error.filename else ""
        return LaunchAnswer(errno=error.errno or 0, path=path, error=error.strerror or str(error))
    return LaunchAnswer(error=f"{type(error).__name__}: {error}")
