"""Moving captures from memory to the disk, some seconds after an operation and at the end of the daemon.

In an encrypted home nothing is copied to the disk as it is: captures leave memory when they are stored and evicted
(storing.py, housekeeping.py).
"""

import asyncio
import contextlib
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor

from waypoint.capture.captures import Captures
from waypoint.linux.tasks import pauses
from waypoint.model.errors import Failed, UnknownName, WaypointError
from waypoint.model.records import Capture
from waypoint.service.storing import Storing

QUIET_S, LONGEST_S = 2.0, 10.0
"""Moving begins when no operation has come for QUIET_S, at the latest after LONGEST_S, and at once when the memory for
captures is half full.
"""
_BUSY_S = 1.0  # until the next try to remove a capture from memory that was in use
_AGAIN_S = 60.0  # until the next try after a failure
FLUSH_S = 8.0
"""How long a daemon that ends moves captures: less than it has for its shutdown (daemon/lifetime.py)."""

log = logging.getLogger(__name__)


class Moving:
    """`problem`: why a capture could not be moved at the last try; None if all could."""

    def __init__(self, captures: Captures, storing: Storing) -> None:
        self._captures = captures
        self._storing = storing
        self._is_encrypted = captures.images.keys.encryption is not None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._first_due = 0.0
        self._executor = ThreadPoolExecutor(1, "moving")
        self._work: Future[float | None] | None = None
        self._deadline = float("inf")  # by the monotonic clock
        self.problem: WaypointError | None = None

    def later(self) -> None:
        """Move the captures in memory, when there are no operations for a while. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._schedule)

    async def flush(self) -> None:
        """Move what FLUSH_S suffices for. The rest stays in memory until the next daemon moves it."""
        if self._timer is not None:
            self._timer.cancel()
        self._deadline = time.monotonic() + FLUSH_S
        await asyncio.wrap_future(self._executor.submit(self._move_all))
        left = len(self._captures.in_memory())
        if left:
            log.warning("%d captures are in memory only until the next daemon has moved them to the disk", left)

    def _schedule(self) -> None:
        if self._is_encrypted or self._deadline != float("inf"):
            return
        now = self._loop.time()
        if self._timer is None:
            self._first_due = now + LONGEST_S
        else:
            self._timer.cancel()
        wait_s = 0.0 if self._captures.is_memory_short() else QUIET_S
        self._timer = self._loop.call_at(min(now + wait_s, self._first_due), self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._work is None or self._work.done():
            self._work = self._executor.submit(self._move_all)
            self._work.add_done_callback(self._plan_again)
        else:  # it may have passed what is new
            self._timer = self._loop.call_later(_BUSY_S, self._begin)

    def _plan_again(self, done: Future[float | None]) -> None:
        if (error := done.exception()) is not None:
            log.error("the captures in memory could not be listed", exc_info=error)
        wait_s = _AGAIN_S if error is not None else done.result()
        if wait_s is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._begin_in, wait_s)

    def _begin_in(self, wait_s: float) -> None:
        if self._timer is None and self._deadline == float("inf"):
            self._timer = self._loop.call_later(wait_s, self._begin)

    def _move_all(self) -> float | None:
        """Move all captures, the oldest first. Returns after how many seconds to try again; None if all are moved."""
        again: list[float] = []
        problem = None
        for capture in self._captures.in_memory():
            if time.monotonic() > self._deadline:
                break
            pauses.wait()
            try:
                if not self._move(capture):
                    again.append(_BUSY_S)
            except UnknownName:  # it was removed meanwhile
                continue
            except WaypointError as error:
                log.warning("capture %s stays in memory: %s", capture.id[:12], str(error).replace("\n", ";"))
                again.append(_AGAIN_S)
                problem = error
            except Exception as error:  # a bug, which must not keep the other captures in memory
                log.exception("capture %s stays in memory", capture.id[:12])
                again.append(_AGAIN_S)
                next_step = "see 'waypoint daemon logs'"
                problem = Failed("move to the disk", f"capture {capture.id[:12]}", repr(error), next_step)
        self.problem = problem
        return min(again, default=None)

    def _move(self, capture: Capture) -> bool:
        if self._is_encrypted:
            return self._storing.store_now(capture) and self._captures.evict(capture)
        return self._captures.move_to_disk(capture)
