"""Keeps one session from filling the pool for all others.

When little space is left and sessions fill it fast (growth.py), each of them may write half of the rest at most. The
limits are simple quotas of btrfs. They are switched on at that moment and not before, because a compaction moves no
data in a pool with quotas (upper/loop_pool.py).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable

from waypoint.model.errors import WaypointError
from waypoint.model.records import LiveRow
from waypoint.upper.contract import UNLIMITED, Pool

log = logging.getLogger(__name__)


class RestShares:
    """`bytes`: what each session could write when the limits were set; None while there are none."""

    def __init__(self, pool: Pool, rows: Callable[[], Iterable[LiveRow]]) -> None:
        """`rows`: the records of the live sessions; called in the event loop."""
        self._pool = pool
        self._rows = rows
        self._lock = threading.Lock()
        self._limited: set[str] = set()  # the trees that have a share: a second one would let them write more
        self.bytes: int | None = None

    def share(self, left_bytes: int | None) -> None:
        """Limit all sessions, because `left_bytes` are left; None: remove these limits. A single session gets none.
        Call this in the event loop.
        """
        if left_bytes is None:
            self.bytes = None
        elif self.bytes is None and len(list(self._rows())) > 1:
            self.bytes = left_bytes // 2
        else:
            return
        self.apply()

    def apply(self) -> None:
        """Set or remove the limits of the present sessions in the background."""
        asyncio.get_running_loop().run_in_executor(None, self._apply, list(self._rows()))

    def _apply(self, rows: list[LiveRow]) -> None:
        with self._lock:
            began, share = time.monotonic(), self.bytes  # read here: threads may get the lock in another order
            if share is None:
                self._limited.clear()
            for row in rows:
                if row.tree in self._limited:
                    continue
                try:
                    said = self._limit(row, share)
                except WaypointError as error:  # the session has ended meanwhile, or the disk fails
                    log.warning("the share of branch %s is not limited: %s", row.branch, error)
                else:
                    if said:
                        log.warning("one session can fill the pool for all: %s", said)
                        return
                    if share is not None:
                        self._limited.add(row.tree)
            if share is not None:
                log.info("limited %d sessions to %d bytes each in %.1f s", len(rows), share, time.monotonic() - began)

    def _limit(self, row: LiveRow, share: int | None) -> str:
        written, asked = self._pool.written_bytes(row.tree), row.setting.limits.disk
        if share is None:
            return self._pool.limit(row.tree, asked or UNLIMITED) if written is not None else ""
        return self._pool.limit(row.tree, min(asked or UNLIMITED, (written or 0) + share))
