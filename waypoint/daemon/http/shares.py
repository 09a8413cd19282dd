"""Limits for each user, so that no user can keep the others from being served: connections, requests at a time, and
computing time.

The owner of the home and root have no such limits.
"""

import asyncio
import collections

from waypoint.daemon.http.messages import Limits


class Share:
    """The state that all connections of one user share."""

    def __init__(self, limits: Limits, *, limited: bool) -> None:
        """Must be made in the running event loop. `limited`: whether the user is neither root nor the home's owner."""
        self.limited = limited
        self.connections = 0
        self._requests = asyncio.Semaphore(limits.requests_of_user)
        self._loop = asyncio.get_running_loop()
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._is_taken = False  # whether a connection has had a turn in this round of the event loop

    async def turn(self, *, has_waited: bool) -> None:
        """Wait until this connection may compute. All connections of a limited user together get one turn in each round
        of the event loop, in the order of their calls. A connection of a user without limits gets a turn in the next
        round, or at once if it has just waited for its client (`has_waited`).
        """
        if not self.limited:
            if not has_waited:
                await asyncio.sleep(0)
        elif self._is_taken:
            turn = self._loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._is_taken = True
            self._loop.call_soon(self._pass_on)

    async def begin(self) -> None:
        """Wait until the user has fewer requests under way than the limit, and count one more. `end` must follow."""
        if self.limited:
            await self._requests.acquire()

    def end(self) -> None:
        if self.limited:
            self._requests.release()

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # done: the waiting task was cancelled
                turn.set_result(None)
                self._loop.call_soon(self._pass_on)
                return
        self._is_taken = False
