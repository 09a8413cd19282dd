"""Ends the connections of a restored or forked session to other machines, and those through its published ports.

The other machine still uses the connection with the captured session, or has ended it. A program would wait minutes for
an answer. When its connection is ended, the program gets ECONNRESET at once and can connect again.
"""

import contextlib
import logging
from collections.abc import Iterable

from waypoint.linux.net import sockets, tcp_connections
from waypoint.processes import ports

log = logging.getLogger(__name__)


def end(pid: int, processes: Iterable[int]) -> None:
    """End all connections of a session to other machines, and those whose other end is missing. `pid`: the session's
    pid 1. `processes`: all its processes. Call this in the session's network namespace.
    """
    if not sockets.has_tcp(pid):
        return
    with sockets.open_table(pid) as table:
        found = {one.inode: one for one in tcp_connections.without_other_end(table)}
    if not found:
        return
    for inode, process, number in ports.open_sockets(processes):
        one = found.pop(inode, None)
        if one is not None:
            with contextlib.suppress(ProcessLookupError):  # the process has ended, or closed the connection
                _end(one, process, number)


def _end(one: tcp_connections.TcpConnection, process: int, number: int) -> None:
    try:
        taken = sockets.take(process, number)
    except OSError:  # the descriptor was closed, or now belongs to another file
        return
    with taken:
        try:
            tcp_connections.break_off(one, tcp_connections.next_expected(taken))
        except OSError as error:
            log.warning("cannot end the connection of a restored session to %s: %s", one.name, error)
