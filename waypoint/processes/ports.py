"""Ports of a network that sessions share with the host: two cannot have the same one, so that what has one cannot be
copied beside itself.

CRIU alone would not tell: on what it has brought back once, SO_REUSEPORT stays set, and with that two servers share
a port, and the callers.
"""

from collections.abc import Iterable

from waypoint.linux import procfs, sockets


def held_by(pids: Iterable[int]) -> list[str]:
    """The ports that the processes have, as in `tcp 8000`, sorted. What ends meanwhile has none."""
    links: set[str] = set()
    for pid in pids:
        try:
            links.update(procfs.open_files(pid).values())
        except ProcessLookupError:
            continue
    return sorted({_name(socket) for socket in sockets.inet_sockets() if f"socket:[{socket.inode}]" in links})


def taken(ports: Iterable[str]) -> list[str]:
    """Those of `ports` that some process on this machine has now, at whatever address."""
    return sorted({_name(socket) for socket in sockets.inet_sockets() if socket.inode}.intersection(ports))


def _name(socket: sockets.InetSocket) -> str:
    return f"{socket.protocol} {socket.port}"
