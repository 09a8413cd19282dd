"""Layers that a session's own processes attach: files and folders of the session.

Who asks names a path, and nothing that is opened by it may be the machine's, or what the session's user may not read:
it is opened in the session's root, with the user's rights, by the program that copies it.
"""

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Mapping

from waypoint.capture.attaching.attach_orders import Incoming, SessionSide
from waypoint.capture.layers.layer import Staged
from waypoint.linux.calls import powers
from waypoint.model.errors import UsageProblem
from waypoint.service.attached.incoming import staged_in
from waypoint.service.home import Home
from waypoint.session.live.session import LiveSession
from waypoint.session.looking.seen_files import of_live


@contextlib.asynccontextmanager
async def taken_from(home: Home, live: LiveSession, attach: Mapping[str, str]) -> AsyncIterator[Staged | None]:
    """What is at the paths `attach`, by kind, in the session, on disk, for the `with` block, which may take it over;
    None if there are none. Raises UsageProblem, Failed (the disk is full), OSError if the session has ended; then
    nothing of it is left.
    """
    if not attach:
        yield None
        return
    for kind, path in attach.items():
        if not path.startswith("/") or "\0" in path:
            said = "inside a session a path begins with /"
            raise UsageProblem("attach", f"{kind}={path}", said, f'begin it with the folder: "{kind}=$PWD/{path}"')
    user = live.record.row.setting.user
    seen = await asyncio.to_thread(functools.partial(of_live, live, user))
    try:
        rights = seen.ids_of(user) if powers.is_machines() else None
        side = SessionSide(root_fd=seen.root, ids=seen.ids, views=sorted(seen.views), user=rights)
        layers = [Incoming(kind=kind, path=path) for kind, path in attach.items()]
        async with staged_in(home, layers, _nothing(), side) as staged:
            yield staged
    finally:
        os.close(seen.root)


async def _nothing() -> AsyncIterator[bytes]:
    """The body of a request that has none."""
    nothing: tuple[bytes, ...] = ()
    for piece in nothing:
        yield piece
