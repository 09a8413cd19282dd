"""Types of service functions' parameters and results besides records: peers, uploads, downloads, streams."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple, TypeVar

from waypoint.model.streams import Inlet, Outlet

Item = TypeVar("Item")


class Peer(NamedTuple):
    """The process that connected, by SO_PEERCRED (unix(7)), with ids of the daemon's own user and pid namespaces. The
    process may have ended since, and its pid may be another's.
    """

    pid: int
    uid: int
    gid: int


Upload = AsyncIterator[bytes]
"""The body of a request, in pieces of any size, each of which is read when it is asked for. Its exceptions (the client
is gone, too slow, or sends too much) must not be caught.
"""


class Handed(NamedTuple):
    """A piece of a download that passes an open descriptor of this process to the client beside its bytes (SCM_RIGHTS,
    unix(7)). At least one byte.
    """

    content: bytes
    descriptor: int


class Download(NamedTuple):
    """An answer that is made while it is sent.

    `kind`: the media type. `pieces`: closed when all are sent, and when the client has gone. An exception before the
    first piece becomes an error answer; a later one breaks the connection. `endless`: ends only with the client or the
    daemon, which does not wait for it to stop.
    """

    kind: str
    pieces: AsyncGenerator[bytes | Handed, None]
    endless: bool = False


Pages = Iterator[list[Item]]
"""A long list. Each step makes one page, in a few milliseconds at most; a page may be empty. A step may read from the
store, so it blocks. All steps must be made in one thread, any thread.
"""

Stream = Callable[[Inlet, Outlet], Awaitable[dict[str, object]]]
"""Serves one stream of frames until its end and returns the payload of the `x` frame.

It must have a `receive()` pending while it waits for anything else: only that reports that the client has gone. It is
cancelled when the daemon stops. A WaypointError becomes an `x` frame with `error`. If the client vanishes before the
upgrade, the Stream is never called: so the function that returns it must not leave resources for it to clean up.
"""
