"""The internet sockets of a network namespace (proc_pid_net(5)): a program could ask netlink (sock_diag(7)) as well."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

_TABLES = (("tcp", "tcp"), ("tcp", "tcp6"), ("udp", "udp"), ("udp", "udp6"))


class InetSocket(NamedTuple):
    """One that has a local port. `inode`: its number in /proc/PID/fd; 0 if no process has it (any more)."""

    protocol: str
    port: int
    inode: int


def inet_sockets() -> Iterator[InetSocket]:
    """Those of the caller's network namespace."""
    for protocol, name in _TABLES:
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{name}") as table:  # a kernel without IPv6
            next(table, "")
            for line in table:
                words = line.split()
                yield InetSocket(protocol, int(words[1].rpartition(":")[2], 16), int(words[9]))
