"""Getting TCP connections out of repair mode, in which a CRIU that was killed has left them.

While CRIU dumps a connection, the connection is in repair mode (TCP_REPAIR in linux/tcp.h): the kernel neither sends
nor takes any data, and close says nothing to the peer. CRIU ends the mode when it lets the processes go. If CRIU is
killed, nobody does, and the connection stands still for ever.
"""

import contextlib
import socket
from collections.abc import Iterable

from waypoint.linux.net import sockets
from waypoint.linux.tasks import procfs

_TCP_REPAIR = 19
_ON = 1
_OFF = 0


def end(pids: Iterable[int]) -> int:
    """End the repair mode of all TCP sockets of the processes. Returns how many sockets were in repair mode.

    No CRIU may work on the processes. Processes that end meanwhile are skipped. Needs CAP_NET_ADMIN in the user
    namespace of the sockets' network namespace, and the right to trace the processes.
    """
    return sum(_end(pid, number) for pid, number in _sockets(pids))


def _sockets(pids: Iterable[int]) -> Iterable[tuple[int, int]]:
    """One process and descriptor for each socket that the processes have open."""
    found: dict[str, tuple[int, int]] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for number, link in procfs.open_files(pid).items():
                if link.startswith("socket:"):
                    found.setdefault(link, (pid, number))
    return found.values()


def _end(pid: int, number: int) -> bool:
    with (
        contextlib.suppress(OSError),  # the process or its descriptor is gone, or this is no TCP socket
        sockets.take(pid, number) as taken,
    ):
        if taken.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR) == _ON:
            taken.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _OFF)
            return True
    return False
