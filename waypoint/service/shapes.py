"""What service functions take and give besides records: who asks, and what passes piece by piece."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from waypoint.model.streams import Inlet, Outlet


class Peer(NamedTuple):
    """Who is at the other end of a connection, by SO_PEERCRED (unix(7)): the process that connected, at that moment.

    The ids are those of the daemon's own user and pid namespaces. By the time it is used, the pid may be another's.
    """

    pid: int
    uid: int
    gid: int


Upload = AsyncIterator[bytes]
"""A body that is read as it comes, in pieces of any size. Nothing is read ahead of what is asked for.

An exception that comes out of it (the client is gone, too slow, or sends too much) must be let through.
"""


class Download(NamedTuple):
    """An answer that is made while it is sent: the next piece is asked for when the last one has been taken.

    `kind`: the media type. `pieces`: closed when all are sent, and when the client has gone. What raises before the
    first piece becomes a plain error answer; later, the connection breaks off. `endless`: ends only with the client or
    the daemon, which does not wait for it to stop.
    """

    kind: str
    pieces: AsyncGenerator[bytes, None]
    endless: bool = False


Stream = Callable[[Inlet, Outlet], Awaitable[dict[str, object]]]
"""Serves one stream of frames until its end and returns the payload of the `x` frame.

It must have a `receive()` pending while it waits for anything else: only that tells it that the client has gone. It is
cancelled when the daemon stops. A WaypointError that it raises becomes an `x` frame with `error`. A service function
that returns a Stream must leave nothing behind that only the Stream would clean up: if the client vanishes before the
upgrade, the Stream is never called.
"""
