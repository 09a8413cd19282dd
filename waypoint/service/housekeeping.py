"""Giving back what nothing keeps: `gc`."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from waypoint.branch import removal
from waypoint.capture.steps import Step, reach
from waypoint.model.errors import StateConflict, WaypointError
from waypoint.model.facts import GcFacts, RemovedFacts, StrangerFacts
from waypoint.model.records import Capture
from waypoint.model.requests import GcRequest
from waypoint.model.times import iso_time
from waypoint.service.background.jobs import Job
from waypoint.service.home import RELIEVE_S, Home
from waypoint.service.usage import home_bytes
from waypoint.session.birth import rights
from waypoint.session.live.shelves import shelves_of
from waypoint.upper.contract import GrowthOutcome

Told = TypeVar("Told")

AT_ONCE = 8
"""Captures that are removed where the disk runs short, before it is looked whether there is room."""

log = logging.getLogger(__name__)


async def gc(home: Home, request: GcRequest) -> GcFacts:
    """Remove the captures that no name stands for and no kept operation can bring back, and what names.db does not
    know, then let the pool give its free space back to the disk. A job of the kind `gc` does it, which goes on when the
    client has gone. With `request.dry_run` only tell what would be removed. Raises StateConflict if a gc is running,
    Failed.
    """
    keep_s = home.keep_operations_s if request.keep_operations_s is None else request.keep_operations_s
    if keep_s < home.keep_operations_s:
        said = "others could not take back what they can now"
        rights.check_unbound(home.sessions.resources, "gc with", f"--keep-operations {keep_s:g}s", said)
    if request.dry_run:
        return await asyncio.to_thread(_tell, home, keep_s)
    found = await home.jobs.result(home.jobs.start("gc", lambda job: gc_job(home, job, keep_s)))
    assert isinstance(found, GcFacts)
    return found


def _tell(home: Home, keep_s: float) -> GcFacts:
    removable = removal.survey(home.names, time.time() - keep_s, home.between).removable
    return GcFacts(
        dry_run=True,
        removed=[_removed(capture) for capture in home.names.captures_of(removable, may_lack=True).values()],
        strangers=home.present_strangers(),
        kept_operations_s=keep_s,
        freed_bytes=0,
        home_bytes=home_bytes(home),
        failed=[],
    )


async def gc_job(home: Home, job: Job, keep_s: float) -> GcFacts:
    """The work of `gc`, which keeps the operations of the last `keep_s` seconds. If the job is cancelled, it ends with
    the capture at hand.
    """
    work = _Work(home, job, keep_s)
    return await work.in_thread(work.carry_out)


def relieve(home: Home) -> None:
    """Begin to make room in the pool, in a job of the kind `gc`; nothing if one is running. Removes what nothing keeps,
    the oldest first, until the pool has its headroom again. What names.db does not know stays.
    """
    with contextlib.suppress(StateConflict):  # a gc is running, which makes more room than this
        home.jobs.start("gc", lambda job: _relieve_job(home, job))


async def _relieve_job(home: Home, job: Job) -> int:
    """Returns the number of captures that were removed."""
    work = _Work(home, job, home.keep_operations_s)
    return await work.in_thread(work.make_room)


class _Work:
    """One `gc`."""

    def __init__(self, home: Home, job: Job, keep_s: float) -> None:
        self._home = home
        self._job = job
        self._keep_s = keep_s
        self._failed: list[str] = []
        self.is_cancelled = False

    async def in_thread(self, act: Callable[[], Told]) -> Told:
        """Call `act`, a method of this work, in a thread. If the caller is cancelled, `act` is told so, and has ended
        when the cancellation goes on. Else what could not be removed is tried again later: where the disk has room
        again by then, nothing else would ask for it.
        """
        thread = asyncio.ensure_future(asyncio.to_thread(act))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            self.is_cancelled = True
            await asyncio.wait([thread])
            raise
        finally:
            if self._home.due_for_removal and not self.is_cancelled:
                asyncio.get_running_loop().call_later(RELIEVE_S, self._home.relieve_later)

    def carry_out(self) -> GcFacts:
        home, before = self._home, home_bytes(self._home)
        chosen = self._remove()
        self._drop_all(chosen)
        strangers = self._remove_strangers()
        self._try("the free space of the pool", self._shrink)
        after = home_bytes(home)
        return GcFacts(
            dry_run=False,
            removed=[_removed(capture) for capture in chosen],
            strangers=strangers,
            kept_operations_s=self._keep_s,
            freed_bytes=max(0, before - after),
            home_bytes=after,
            failed=self._failed,
        )

    def make_room(self) -> int:
        """Remove a few captures at a time until the pool has its headroom. Returns how many were removed."""
        home, count = self._home, 0
        while not self.is_cancelled and home.pool.grow_if_needed().outcome is GrowthOutcome.REFUSED:
            chosen = self._remove(AT_ONCE)
            if not chosen:
                break
            self._drop_all(chosen)
            count += len(chosen)
            home.pool.settle()
        self._drop_all([])  # what could not be removed while the pool was fuller
        if count:
            log.warning("the disk ran short: %d captures that nothing keeps were removed", count)
        return count

    def _remove(self, limit: int | None = None) -> list[Capture]:
        home = self._home
        return removal.remove(home.captures, home.names, time.time() - self._keep_s, limit, home.between)

    def _drop_all(self, chosen: list[Capture]) -> None:
        """Remove what the captures have on disk, and what an earlier gc was to remove. What is left if that is cut off
        or fails, the next gc removes (`in_thread`), or the next daemon.
        """
        due = self._home.due_for_removal
        due |= {capture.id: capture for capture in chosen}
        whole = list(due.values())
        if whole:
            self._job.report(items=0, items_total=len(whole))
        for number, capture in enumerate(whole):
            if self.is_cancelled:
                return
            self._home.between()
            reach(Step.REMOVING)
            drop = functools.partial(self._home.captures.drop, capture)
            if self._try(f"capture {capture.id[:12]}", drop):
                del due[capture.id]
            self._job.report(items=number + 1, items_total=len(whole))

    def _remove_strangers(self) -> list[StrangerFacts]:
        """Remove what lay in the home when the daemon started, and is unknown to names.db: nobody knows whose it is, so
        only for root, and for who may do the same. Returns what is gone.
        """
        is_bound = rights.is_bound(self._home.sessions.resources)
        there = {} if is_bound else {(one.kind, one.id): one for one in self._home.present_strangers()}
        gone = []
        for shelf in shelves_of(self._home.sessions.resources) if there else ():
            for ident in shelf.unknown():
                stranger = there.get((shelf.kind, ident))
                if stranger is not None and not self.is_cancelled:
                    is_gone = self._try(stranger.path, lambda shelf=shelf, ident=ident: shelf.remove(ident))  # type: ignore[misc]
                    gone += [stranger] if is_gone else []
        return gone

    def _shrink(self) -> None:
        """Let the pool give its free space back to the disk."""
        home = self._home
        home.pool.settle()

        def goes_on() -> bool:
            home.between()
            return not self.is_cancelled

        home.pool.shrink(goes_on, lambda: not home.names.live())

    def _try(self, what: str, act: Callable[[], None]) -> bool:
        """Returns whether `act` has worked."""
        try:
            act()
        except (WaypointError, OSError) as error:
            log.error("gc cannot remove %s: %s", what, error)
            said, step = (error.said, error.next_step) if isinstance(error, WaypointError) else (error.strerror, "")
            self._failed.append(f"{what}: {said}" + (f"; next: {step}, and start the gc again" if step else ""))
            return False
        return True


def _removed(capture: Capture) -> RemovedFacts:
    processes = capture.layers.processes
    return {
        "capture": capture.id,
        "branch": capture.branch,
        "created": iso_time(capture.created),
        "tier": capture.tier,
        "size_bytes": processes.size_bytes if processes else 0,
    }
