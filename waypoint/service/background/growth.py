"""Grows the pool ahead of need, and hardly polls while nothing happens.

The kernel raises no event when a file system fills up, so a thread polls the pool's free space, more often the less is
free. Besides the headroom it keeps as much free as was written lately, because growing takes milliseconds on an idle
disk, but seconds while much is being written.

Writing needs processor time. So polling is rare (IDLE_S) while the sessions are idle, until the kernel reports that
they have used the processor again (linux/tasks/use_notice.py). Where the kernel cannot report this, polling stays
frequent.

A pool that lies directly on the disk's file system cannot grow, but its disk can run short.
"""

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from waypoint.linux.tasks import cgroups
from waypoint.linux.tasks.use_notice import UseNotice
from waypoint.model.errors import WaypointError
from waypoint.upper.contract import Growth, GrowthOutcome, Outlook, Pool

FASTEST = 2_000_000_000
"""Bytes per second. At this speed a writer uses up a quarter of the free space between two polls."""
RECENT_S = 2.0
"""Besides the headroom, the pool keeps as much free as was written within this time."""
LONGEST_S, SHORTEST_S = 0.5, 0.01
"""Bounds of the time between two polls."""
IDLE_S = 1.0
"""The time between two polls while the sessions are idle: other programs may fill the disk, whose free space is
promised to the sessions (upper/pool_file.py).
"""
FILLING_WITHIN_S = 10.0
"""A pool fills up if it has less left than twice the headroom, and this lasts for less than this time at the speed of
the last RECENT_S. With less than half of the headroom it is too late: switching quotas on takes a commit, which lasts
some seconds while a program writes at full speed.
"""
MOST_AHEAD_BYTES = 1 << 30
"""The most that is kept free besides the headroom: a program may reserve much more in one call."""
_USE_USEC = 5000  # processor time in which a writer at the speed FASTEST writes 10 MB
_IDLE_USEC = 2000  # sessions that used at most this processor time between two polls count as idle

log = logging.getLogger(__name__)


class PoolWatch:
    """Polls one pool from `start` to `stop`, in a thread of its own, so that no other work of the daemon delays it."""

    def __init__(
        self,
        pool: Pool,
        group: str,
        on_short: Callable[[], object] = lambda: None,
        on_filling: Callable[[int | None], object] = lambda _: None,
    ) -> None:
        """`group`: the cgroup above the sessions' groups. `on_short`: called in the thread every LONGEST_S while the
        pool or the disk under it runs short (`Outlook.is_short`). `on_filling`: called in the thread with the bytes
        that are left while sessions fill up the pool, and with None when there is room again, also at the first look.
        Both must not block or raise.
        """
        self._pool = pool
        self._on_short, self._on_filling = on_short, on_filling
        self._has_room = False
        self._reported_at = float("-inf")
        self._group = group
        self._notice: UseNotice | None = None
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._written = _Written()
        self._used_usec = 0
        self._writers: set[object] = set()
        self._ends = False
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="pool-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop polling. Returns when the last poll, and any growing after it, is over."""
        self._ends = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        os.close(self._bell)
        if self._notice is not None:
            self._notice.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep polling inside the `with` block, in which the daemon itself writes into the pool. Re-entrant."""
        writer = object()
        self._writers.add(writer)
        os.eventfd_write(self._bell, 1)
        try:
            yield
        finally:
            self._writers.remove(writer)
            os.eventfd_write(self._bell, 1)  # poll once more: the last poll was before the last write

    def _run(self) -> None:
        self._notice = _notice_of(self._group)
        while not self._ends:
            outcome, free = self._poll_pool()
            self._report_short()
            grows = outcome in (GrowthOutcome.ENOUGH, GrowthOutcome.GROWN)
            self._wait(min(LONGEST_S, max(SHORTEST_S, free / 4 / FASTEST)) if grows else LONGEST_S)

    def _poll_pool(self) -> tuple[GrowthOutcome | None, int]:
        """Grow the pool if needed. Returns the outcome, None after an error, and the free bytes."""
        try:
            growth = self._pool.grow_if_needed(self._written.recently())
        except WaypointError as error:
            self._say(str(error))
            return None, 0
        self._written.note(growth)
        self._say(growth.said)
        return growth.outcome, growth.free_bytes

    def _report_short(self) -> None:
        if time.monotonic() - self._reported_at < LONGEST_S:
            return
        self._reported_at = time.monotonic()
        with contextlib.suppress(WaypointError):  # `_poll_pool` has logged it
            outlook = self._pool.outlook()
            if outlook.is_short:
                self._on_short()
            self._report_filling(outlook)

    def _report_filling(self, outlook: Outlook) -> None:
        lasts_s = RECENT_S * outlook.left_bytes / max(1, self._written.recently())
        is_low = outlook.left_bytes < 2 * outlook.headroom_bytes and not outlook.is_readonly
        if is_low and lasts_s < FILLING_WITHIN_S and 2 * outlook.left_bytes >= outlook.headroom_bytes:
            self._on_filling(outlook.left_bytes)
        elif not is_low and not self._has_room:
            self._on_filling(None)
        self._has_room = not is_low

    def _say(self, said: str) -> None:
        """Log why the pool does not grow: once, until it grows again. `said`: the reason; "": the pool can grow."""
        if said and not self._said:
            log.warning("the pool cannot grow: %s", said)
        self._said = said

    def _wait(self, seconds: float) -> None:
        """Wait for `seconds` if a session may be writing now, else until one uses the processor, at most IDLE_S."""
        if self._notice is None or self._is_busy():
            _poll([self._bell], seconds)
        else:
            self._notice.arm()
            _poll([self._bell, *self._notice.fds], IDLE_S)
            self._notice.disarm()
            _poll(self._notice.fds, 0)  # a notice that came before `disarm` must not end the next wait
        with contextlib.suppress(BlockingIOError):  # not rung
            os.eventfd_read(self._bell)

    def _is_busy(self) -> bool:
        before, self._used_usec = self._used_usec, cgroups.cpu_usec(self._group)
        return bool(self._writers) or self._used_usec - before > _IDLE_USEC


class _Written:
    """How much was written lately, measured by the used space of the pool."""

    def __init__(self) -> None:
        self._used: int | None = None
        self._amounts: deque[tuple[float, int]] = deque()  # time and amount

    def note(self, growth: Growth) -> None:
        used = growth.size_bytes - growth.free_bytes
        if self._used is not None and used > self._used:
            self._amounts.append((time.monotonic(), used - self._used))
        self._used = used

    def recently(self) -> int:
        while self._amounts and self._amounts[0][0] < time.monotonic() - RECENT_S:
            self._amounts.popleft()
        return min(MOST_AHEAD_BYTES, sum(amount for _, amount in self._amounts))


def _notice_of(group: str) -> UseNotice | None:
    """The kernel's notice of processor use; None if this kernel has none: then polling stays frequent."""
    try:
        return UseNotice(group, _USE_USEC)
    except OSError as error:
        log.info("the kernel does not report when the sessions use the processor: %s", error)
        return None


def _poll(fds: list[int], seconds: float) -> None:
    """Wait until one of the descriptors is readable, at most `seconds`."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(1000 * seconds)
