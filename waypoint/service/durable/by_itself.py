"""What the daemon does by itself about the store: what names stand for is put into it, so that it outlives a power
loss; and where captures have more on disk besides their files than they may, or the disk runs short, those that were
not used for the longest time are evicted, if the store has them.
"""

import asyncio
import logging
from collections.abc import Callable

from waypoint.linux.storage import filesystem
from waypoint.model.errors import StateConflict, UnknownName, WaypointError
from waypoint.model.records import Capture
from waypoint.service.durable.keeping import evict_one, put_job, whole_of
from waypoint.service.durable.settling_images import SettlingImages
from waypoint.service.home import Home
from waypoint.store.belonging import keep_up
from waypoint.upper.contract import GIB

RETRY_S = 300.0
"""After this time what has failed is tried again: a disk that was full."""
_MOST_FAILED = 3  # at a time: what fails for one fails for all, mostly. Those are the last to be tried again
_SHARE = 10  # of the disk that captures usually have besides their files: a tenth
_LEAST_BYTES = 4 * GIB

log = logging.getLogger(__name__)


class ByItself:
    """The work of one daemon. To be used in its event loop."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._settling = SettlingImages(home)
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._failed: set[str] = set()  # captures that could not be put when it was last tried

    def later(self) -> None:
        """A name may stand for something else now, or the daemon has started: what names stand for then will be put
        into the store, when as much time has passed as config.json says; and images come from memory to the disk.
        """
        self._settling.later()
        if self._home.config.durable_after_s is not None:
            self._at(self._home.config.durable_after_s)

    async def close(self) -> None:
        """Begin nothing more. A job that is running is ended with all others (`Jobs.close`)."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._settling.stop()

    async def settle(self) -> None:
        """What is in memory comes to the disk. Called again at last, when nothing is captured any more."""
        await self._settling.close()
        await asyncio.to_thread(keep_up, self._home.path, self._home.names)

    def _at(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())
        else:
            self.later()

    async def _work(self) -> None:
        failed: set[str] = set()
        try:
            while (capture := await asyncio.to_thread(self._next, failed)) is not None and len(failed) < _MOST_FAILED:
                if not await self._put(capture, failed):
                    return
            await self._cool()
        except (WaypointError, OSError) as error:
            log.warning("what is on disk besides files stays: %s", error)
            self._at(RETRY_S)
        if failed:
            self._at(RETRY_S)

    async def _put(self, capture: Capture, failed: set[str]) -> bool:
        """Put one capture into the store, after those that it goes on from; note in `failed` if that fails. Returns
        whether to go on with others.
        """
        jobs = self._home.jobs
        try:
            job = jobs.start("store", lambda job: put_job(self._home, job, capture.id), is_unasked=True)
        except StateConflict:  # somebody has asked for work on the store
            self.later()
            return False
        try:
            await jobs.result(job)
        except UnknownName:  # it was removed meanwhile
            failed.add(capture.id)
        except (WaypointError, OSError) as error:
            log.warning("the capture %s is not put into the store: %s", capture.id[:12], error)
            failed.add(capture.id)
            self._failed.add(capture.id)
        return True

    def _next(self, failed: set[str]) -> Capture | None:
        """The oldest capture that a name stands for and that is not in the store, without those that have `failed`;
        those that failed some other time come last.
        """
        names = self._home.names
        wanted = list({ref.capture for ref in names.refs().values() if ref.capture} - failed)
        standings = names.standings(wanted)
        out = {ident for ident in wanted if standings[ident].durable or standings[ident].removed}
        lacking = [ident for ident in wanted if ident not in out and not self._home.captures.torn.may_be(ident)]
        self._failed &= {*lacking, *failed}
        return min(
            names.captures_of(lacking, may_lack=True).values(),
            key=lambda capture: (capture.id in self._failed, capture.created),
            default=None,
        )

    async def _cool(self) -> None:
        """Evict what is too much."""
        budget = self._home.config.hot_budget_bytes
        if budget is None:
            budget = max(_LEAST_BYTES, filesystem.total_bytes(self._home.path) // _SHARE)
        used = await asyncio.to_thread(self._home.captures.measures.hot_bytes_of)
        if used <= budget:
            return
        chosen = await whole_of(self._home, await asyncio.to_thread(evictable, self._home))
        count = await asyncio.to_thread(evict_coldest, self._home, chosen, lambda freed: used - freed > budget)
        log.info("%d captures that were not used for the longest time are in the store alone now", count)


def evictable(home: Home) -> list[Capture]:
    """The captures that the store has and that have more on disk than their files; which was not used for the longest
    time comes first. Blocks.
    """
    coldest = home.captures.measures.coldest()
    standings = home.names.standings(coldest)
    durable = [ident for ident in coldest if standings[ident].durable]
    return list(home.names.captures_of(durable, may_lack=True).values())


def evict_coldest(home: Home, chosen: list[Capture], goes_on: Callable[[int], bool]) -> int:
    """Evict the captures one after the other as long as `goes_on`, which is told how many bytes of hot copies are
    freed so far, and leave out those that somebody holds. Returns how many were evicted. Blocks.
    """
    freed = count = 0
    home.names.sync()  # what leads to an image is to last longer than what it is needed for
    for capture in chosen:
        if not goes_on(freed):
            break
        home.between()
        size = home.captures.measures.hot_bytes_of(capture.id)
        if evict_one(home, capture):
            freed += size
            count += 1
    return count


async def make_room_by_evicting(home: Home) -> int:
    """Evict captures as long as the disk is short, which was not used for the longest time first. Returns how many.
    What keeps all of them, such as damage in the store, is logged.
    """
    if not await asyncio.to_thread(_is_short, home):
        return 0
    try:
        chosen = await whole_of(home, await asyncio.to_thread(evictable, home))
    except WaypointError as error:
        log.warning("nothing that is in the store, too, is removed: %s", error)
        return 0
    return await asyncio.to_thread(evict_coldest, home, chosen, lambda _freed: _is_short(home))


def _is_short(home: Home) -> bool:
    home.pool.settle()
    return home.pool.outlook().is_short
