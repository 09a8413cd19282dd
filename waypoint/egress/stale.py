"""Ending connections whose other side is not there: those to other machines in a session that was just brought back.

Their other side goes on with the session that was captured, or has long forgotten them. Without an end a program would
wait for an answer for minutes; with one it sees ECONNRESET at once, and connects anew.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable

from waypoint.linux.net import sockets, tcp_connections
from waypoint.processes import ports

LOOK_S = 1.0  # other sessions wait meanwhile, and thousands of processes may have half a million files each

log = logging.getLogger(__name__)


def end(processes: Callable[[], Iterable[int]]) -> None:
    """End the connections to other machines in the network namespace of the calling thread, which is that of a session.
    `processes`: all of the session's, asked for if there are any such connections. Raises OSError.
    """
    with sockets.open_own_table() as table:
        found = {one.inode: one for one in tcp_connections.outside(table)}
    until = time.monotonic() + LOOK_S
    for pid in processes() if found else ():
        if not found or time.monotonic() > until:
            return
        for inode, process, number in ports.open_sockets([pid]):
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
