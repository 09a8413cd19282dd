"""Growing the pool ahead of need, without waking up while nothing happens.

The kernel raises no event when a file system fills up, so it is looked at: every BUSY_S while some session uses the
processor, and not at all once none has for a whole interval; then the next activity of a terminal or a request starts
the looking again. What this misses is a program that slept without using the terminal, wakes up by itself and writes
more than the headroom within BUSY_S of the next look: it sees a full disk although the pool could have grown.
"""

import asyncio
import logging

from waypoint.linux import cgroups
from waypoint.session.sessions import Sessions
from waypoint.upper.contract import GrowthOutcome, Pool

BUSY_S = 0.5
_IDLE_USEC = 2000  # less processor time than this in an interval is rest

log = logging.getLogger(__name__)


class PoolWatch:
    """Runs in the daemon's loop from `start` to `stop`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._sessions: Sessions | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._used: dict[str, int] = {}
        self._refused = False
        self._task: asyncio.Task[None] | None = None

    def start(self, sessions: Sessions) -> None:
        """`sessions` are to call `wake` when something happens in one of them."""
        self._sessions = sessions
        self.wake()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self) -> None:
        """Something happened: look again after BUSY_S, unless that is due anyway."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BUSY_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._is_busy():
            self.wake()
        self._task = asyncio.ensure_future(self._grow())

    def _is_busy(self) -> bool:
        before, self._used = self._used, {}
        for live in self._sessions.live if self._sessions else []:
            self._used[live.branch] = cgroups.cpu_usec(live.record.cgroup)
        return any(used - before.get(branch, 0) > _IDLE_USEC for branch, used in self._used.items())

    async def _grow(self) -> None:
        growth = await asyncio.to_thread(self._pool.grow_if_needed)
        if growth.outcome is GrowthOutcome.REFUSED and not self._refused:
            log.warning("the pool cannot grow: %s", growth.said)
        self._refused = growth.outcome is GrowthOutcome.REFUSED
