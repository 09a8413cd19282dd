"""Ending connections whose other side is not there: those to other machines in a session that was just brought back.

Their other side goes on with the session that was captured, or has long forgotten them. Without an end a program would
wait for an answer for minutes; with one it sees ECONNRESET at once, and connects anew.
"""

import contextlib
import logging
from collections.abc import Iterable

from waypoint.linux.net import sockets, tcp_connections
from waypoint.processes import ports

log = logging.getLogger(__name__)


def end(pid: int, processes: Iterable[int]) -> None:
    """End the connections to other machines of a session, whose pid 1 is `pid`. In the network namespace of it.
    Raises OSError.
    """
    with sockets.open_table(pid) as table:
        found = {one.inode: one for one in tcp_connections.outside(table)}
    if not found:
        return
    for inode, process, number in ports.open_sockets(processes):
        one = found.pop(inode, None)
        if one is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, or closed the connection
                _end(one, process, number)


def _end(one: tcp_connections.TcpConnection, process: int, number: int) -> None:
    try:
        taken = sockets.take(process, number)
    except OSError:  # the descriptor is another file's by now, or none's
        return
    with taken:
        try:
            tcp_connections.break_off(one, tcp_connections.next_expected(taken))
        except OSError as error:
            log.warning("the connection to %s of a session that was brought back stays open: %s", one.name, error)
