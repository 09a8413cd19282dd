"""Growing the pool ahead of need, without waking up while nothing happens.

The kernel raises no event when a file system fills up, so a thread looks at the pool's room: the less room there is,
the more often. Besides the headroom, it makes room for as much as was written lately, since growing takes some
milliseconds, but seconds while much is being written.

Nobody writes without using the processor. So the looking ends when the sessions come to rest, and the kernel tells when
they have used the processor again (linux/calls/use_notice.py). Where the kernel cannot, the looking never ends.

A pool that lies directly on the disk's file system cannot grow, but run short like any other.
"""

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from waypoint.linux.calls.use_notice import UseNotice
from waypoint.linux.tasks import cgroups
from waypoint.model.errors import WaypointError
from waypoint.upper.contract import Growth, GrowthOutcome, Pool

FASTEST = 2_000_000_000
"""Bytes per second: whoever writes no faster cannot use up more than a quarter of the room between two looks."""
RECENT_S = 2.0
"""The pool has room for as much as was written within this time, besides the headroom."""
LONGEST_S, SHORTEST_S = 0.5, 0.01
"""Bounds of the time between two looks."""
_USE_USEC = 5000  # of processor time: 10 MB at the speed of FASTEST
_IDLE_USEC = 2000  # sessions that used at most this processor time between two looks count as idle

log = logging.getLogger(__name__)


class PoolWatch:
    """Watches one pool in a thread of its own, from `start` to `stop`: no other work of the daemon delays a look."""

    def __init__(self, pool: Pool, group: str, on_short: Callable[[], object] = lambda: None) -> None:
        """`group`: the path of the cgroup of which the sessions' groups are children. `on_short`: called in the
        thread, at looks that are LONGEST_S apart, while the pool or the disk under it runs short (`Outlook.is_short`);
        must not block or raise.
        """
        self._pool = pool
        self._on_short = on_short
        self._judged_at = float("-inf")
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
        """Stop looking. Returns when the last look, and any growing that follows it, is over."""
        self._ends = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        os.close(self._bell)
        if self._notice is not None:
            self._notice.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Go on looking during the `with` block: the daemon itself writes into the pool. Any number may overlap."""
        writer = object()
        self._writers.add(writer)
        os.eventfd_write(self._bell, 1)
        try:
            yield
        finally:
            self._writers.remove(writer)
            os.eventfd_write(self._bell, 1)  # the last look was before the last write

    def _run(self) -> None:
        self._notice = _notice_of(self._group)
        while not self._ends:
            outcome, free = self._look()
            self._judge()
            grows = outcome in (GrowthOutcome.ENOUGH, GrowthOutcome.GROWN)
            self._wait(_seconds_until_next(free) if grows else LONGEST_S)

    def _look(self) -> tuple[GrowthOutcome | None, int]:
        """Let the pool grow if needed. Returns the outcome, None after an error, and the free bytes."""
        try:
            growth = self._pool.grow_if_needed(self._written.recently())
        except WaypointError as error:
            self._say(str(error))
            return None, 0
        self._written.note(growth)
        self._say(growth.said)
        return growth.outcome, growth.free_bytes

    def _judge(self) -> None:
        """Tell if the pool runs short, at most once in LONGEST_S: while much is being written, the looks are many."""
        if time.monotonic() - self._judged_at < LONGEST_S:
            return
        self._judged_at = time.monotonic()
        with contextlib.suppress(WaypointError):  # `_look` has said what is wrong with the pool
            if self._pool.outlook().is_short:
                self._on_short()

    def _say(self, said: str) -> None:
        """Log why the pool does not grow, once until it grows again. "": nothing is in its way."""
        if said and not self._said:
            log.warning("the pool cannot grow: %s", said)
        self._said = said

    def _wait(self, seconds: float) -> None:
        """Wait until the pool must be looked at again: after `seconds` if anybody may be writing now."""
        if self._notice is None or self._is_busy():
            _poll([self._bell], seconds)
        else:
            self._notice.arm()
            _poll([self._bell, *self._notice.fds], None)
            self._notice.disarm()
            _poll(self._notice.fds, 0)  # a notice that came before `disarm` must not end the next rest
        with contextlib.suppress(BlockingIOError):  # nobody has rung
            os.eventfd_read(self._bell)

    def _is_busy(self) -> bool:
        before, self._used_usec = self._used_usec, cgroups.cpu_usec(self._group)
        return bool(self._writers) or self._used_usec - before > _IDLE_USEC


class _Written:
    """How much was written lately, as far as the pool's space that is in use tells."""

    def __init__(self) -> None:
        self._used: int | None = None
        self._amounts: deque[tuple[float, int]] = deque()  # when an amount was seen, and how much

    def note(self, growth: Growth) -> None:
        """Take note of a look at the pool."""
        used = growth.size_bytes - growth.free_bytes
        if self._used is not None and used > self._used:
            self._amounts.append((time.monotonic(), used - self._used))
        self._used = used

    def recently(self) -> int:
        """Bytes of the last RECENT_S seconds."""
        while self._amounts and self._amounts[0][0] < time.monotonic() - RECENT_S:
            self._amounts.popleft()
        return sum(amount for _, amount in self._amounts)


def _notice_of(group: str) -> UseNotice | None:
    """The kernel's notice of processor use; None if this kernel gives none, so that the looking never ends."""
    try:
        return UseNotice(group, _USE_USEC)
    except OSError as error:
        log.info("the kernel does not tell when the sessions use the processor: %s", error)
        return None


def _seconds_until_next(free: int) -> float:
    """After how many seconds to look again at a pool in which so many bytes are free."""
    return min(LONGEST_S, max(SHORTEST_S, free / 4 / FASTEST))


def _poll(fds: list[int], seconds: float | None) -> None:
    """Wait until one of the descriptors is readable, at most `seconds`; None: without end."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(None if seconds is None else 1000 * seconds)
