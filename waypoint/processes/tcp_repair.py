"""Taking TCP connections out of repair mode after the death of the CRIU that dumped them.

While CRIU dumps a connection, the connection is in repair mode (TCP_REPAIR in linux/tcp.h): the kernel neither sends
nor receives data, and close sends nothing to the peer. A CRIU that was killed leaves its connections in that mode.
"""

import contextlib
import socket
from collections.abc import Iterable

from waypoint.linux.net import sockets
from waypoint.processes.ports import open_sockets

_TCP_REPAIR = 19
_ON = 1
_OFF = 0


def end(pids: Iterable[int]) -> int:
    """End the repair mode of all TCP sockets of the processes. Returns how many sockets were in repair mode.

    No CRIU may work on the processes. Processes that end meanwhile are skipped. Needs CAP_NET_ADMIN in the user
    namespace of the sockets' network namespace, and the right to trace the processes.
    """
    found: dict[int, tuple[int, int]] = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # its descriptors cannot be listed
            found |= {inode: (pid, number) for inode, _, number in open_sockets([pid])}
    return sum(_end(pid, number) for pid, number in found.values())


def _end(pid: int, number: int) -> bool:
    with (
        contextlib.suppress(OSError),  # the process has ended, or the descriptor is not a TCP socket
        sockets.take(pid, number) as taken,
    ):
        if taken.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR) == _ON:
            taken.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _OFF)
            return True
    return False
