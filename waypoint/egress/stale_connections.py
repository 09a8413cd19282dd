"""Ending the connections to other machines of a session that was just restored or forked.

The peers still talk to the captured session, or have forgotten the connection. A program would wait for an answer for
minutes; when its connection is ended, it sees ECONNRESET at once and can connect again.
"""

import contextlib
import logging
from collections.abc import Iterable

from waypoint.linux.net import sockets, tcp_connections
from waypoint.processes import ports

log = logging.getLogger(__name__)


def end(pid: int, processes: Iterable[int]) -> None:
    """End the connections to other machines of the session with pid 1 `pid`. Call it in its network namespace."""
    with sockets.open_table(pid) as table:
        found = {one.inode: one for one in tcp_connections.outside(table)}
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
    except OSError:  # the descriptor was closed, or is another file's by now
        return
    with taken:
        try:
            tcp_connections.break_off(one, tcp_connections.next_expected(taken))
        except OSError as error:
            log.warning("the connection to %s of a restored session stays open: %s", one.name, error)
