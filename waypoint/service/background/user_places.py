"""How many of something long one user may have under way, who is neither root nor trusted fully."""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Iterator

from waypoint.model.errors import StateConflict

INSIDE, INSIDE_OF_USER = 8, 6
"""Requests of the processes of all sessions together that are served at a time, and of those of one user: the daemon
has 32 threads for what takes long, and whoever asks from outside must find one.
"""
STAGING, STAGING_OF_USER = 2, 1
"""The same, of what is attached from inside and copied first, which takes as long as a session has files."""
EXPORTS, COPIES = 2, 4
"""Of one user with limits: an export has a program of its own, a copy of files takes memory of the daemon's."""


class UserPlaces:
    """Lives in the event loop."""

    def __init__(self, most: int) -> None:
        """`most`: places of one user."""
        self._most = most
        self._taken: collections.Counter[int] = collections.Counter()

    @contextlib.contextmanager
    def one(self, uid: int | None, tried: str, on: str) -> Iterator[None]:
        """Hold a place of the user `uid` during the `with` block; None: whoever needs none. `tried`, `on`: as in
        WaypointError. Raises StateConflict if all are taken: a wait could be one for oneself.
        """
        if uid is None:
            yield
            return
        if self._taken[uid] >= self._most:
            said = f"{self._most} such are under way for you, the most of one user: wait for one to end"
            raise StateConflict(tried, on, said, "try again")
        self._taken[uid] += 1
        try:
            yield
        finally:
            self._taken[uid] -= 1
            if not self._taken[uid]:
                del self._taken[uid]


class PlacesForAll:
    """Places that all users share. Lives in the event loop."""

    def __init__(self, most: int, most_of_user: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._most_of_user = most_of_user
        self._of_users: dict[int, asyncio.Semaphore] = {}

    @contextlib.asynccontextmanager
    async def one(self, uid: int) -> AsyncIterator[None]:
        """Hold a place for the user `uid` during the `with` block. Waits for one, without taking it from others if it
        waits for the user's own.
        """
        own = self._of_users.setdefault(uid, asyncio.Semaphore(self._most_of_user))
        async with own, self._all:
            yield
