"""Requests with a body of any length, which is sent while it is made (docs/protocol.md, section 6)."""

import _socket
import select
from collections.abc import Callable, Iterable

from waypoint.client import wire
from waypoint.client.address import working_branch
from waypoint.client.link import reach, unanswered


def send_body(home: str, target: str, make: Callable[[], Iterable[bytes]]) -> object:
    """POST the pieces that `make` gives, chunked, and return the decoded answer. The request is made once.

    Raises as `link.ask`, and what the pieces raise: then the daemon sees that the body breaks off.
    """
    try:
        return reach(home, lambda path: _send(path, target, make))
    except wire.Cut as cut:
        raise unanswered(home, "POST", target, cut) from cut


def _send(path: str, target: str, make: Callable[[], Iterable[bytes]]) -> object:
    branch = working_branch()
    works_on = f"{wire.BRANCH_HEADER}: {branch}\r\n" if branch else ""
    head = (
        f"POST {target} HTTP/1.1\r\nHost: waypoint\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
        f"Content-Type: application/octet-stream\r\n{works_on}\r\n"
    )
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        sock.connect(path)
        _send_chunks(sock, head.encode("ascii"), make())
        answer, data = wire.read_head(sock)
        return wire.judge(answer.status, b"".join(wire.iter_body(sock, answer, data)))
    finally:
        sock.close()


def _send_chunks(sock: _socket.socket, head: bytes, pieces: Iterable[bytes]) -> None:
    """Send all, unless the daemon answers before that or goes away: what it has said can still be read."""
    watch = select.poll()
    watch.register(sock.fileno(), select.POLLIN)
    before = head
    try:
        for piece in pieces:
            if piece:
                sock.sendall(b"%b%x\r\n%b\r\n" % (before, len(piece), piece), _socket.MSG_NOSIGNAL)
                before = b""
            if watch.poll(0):
                return
        sock.sendall(before + b"0\r\n\r\n", _socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError):
        return
