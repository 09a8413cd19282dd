"""The internet sockets of a network namespace, from the tables in /proc/net (proc_pid_net(5))."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

_TABLES = (("tcp", "tcp"), ("tcp", "tcp6"), ("udp", "udp"), ("udp", "udp6"))


class InetSocket(NamedTuple):
    """A socket with a local port. `inode`: the socket's number in /proc/PID/fd; 0 if no process has it open."""

    protocol: str
    port: int
    inode: int


def inet_sockets() -> Iterator[InetSocket]:
    """All TCP and UDP sockets of the caller's network namespace."""
    for protocol, name in _TABLES:
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{name}") as table:  # a kernel without IPv6
            next(table, "")
            for line in table:
                words = line.split()
                yield InetSocket(protocol, int(words[1].rpartition(":")[2], 16), int(words[9]))
