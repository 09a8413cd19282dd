"""`gc`: removing captures that nothing keeps and files of unknown origin, on request and when the disk runs short."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable
from typing import TypeVar, get_args

from waypoint.branch import removal
from waypoint.branch.removal import NO_POLICY, Policy
from waypoint.capture.steps import Step, reach
from waypoint.linux.tasks.stages import stage
from waypoint.model.errors import StateConflict, StoreDamaged, WaypointError, one_line
from waypoint.model.facts import GcFacts, KeptFacts, RemovedFacts
from waypoint.model.records import Capture, ProcessesLayer
from waypoint.model.requests import GcRequest
from waypoint.model.session_facts import StrangerFacts
from waypoint.model.stages import Stage
from waypoint.model.times import iso_time
from waypoint.service.background.jobs import Job
from waypoint.service.home import RELIEVE_S, Home, Relief
from waypoint.service.usage import home_bytes
from waypoint.session import applying
from waypoint.session.adopt import inventories
from waypoint.session.birth import rights
from waypoint.upper.contract import mib

Result = TypeVar("Result")

AT_ONCE = 8
"""When the disk runs short, how many captures are removed before the free space is measured again."""
_STOP_AGAIN_S = 0.1
"""Seconds between attempts of a cancelled job to interrupt its compaction, which may not have begun yet."""

log = logging.getLogger(__name__)


async def gc(home: Home, request: GcRequest) -> GcFacts:
    """Remove the captures that no name stands for and no kept operation can restore, and what names.db does not
    know; then compact the pool if no session lives. This is a job, which continues when the client has gone.

    With `dry_run` only report what would be removed. Raises StateConflict if a gc is running, or with `compact` if a
    session lives.
    """
    keep_s = home.keep_operations_s if request.keep_operations_s is None else request.keep_operations_s
    if keep_s < home.keep_operations_s:
        said = "other users could then undo fewer of their operations"
        rights.check_unrestricted(home.sessions.resources, "gc with", f"--keep-operations {keep_s:g}s", said)
    asked = zip((request.keep_last, request.keep_daily), home.keep_policy, strict=True)
    policy = removal.Policy(*(usual if one is None else one for one, usual in asked))
    if any(one < usual for one, usual in zip(policy, home.keep_policy, strict=True)):
        said = "fewer captures of other users would be kept"
        asked_for = f"--keep-last {policy.last} and --keep-daily {policy.daily}"
        rights.check_unrestricted(home.sessions.resources, "gc with", asked_for, said)
    budget = home.hot_budget_bytes if request.hot_budget_bytes is None else request.hot_budget_bytes
    if budget < home.hot_budget_bytes:
        said = "captures of other users would take longer to restore"
        rights.check_unrestricted(home.sessions.resources, "gc with", f"--hot-budget {budget}", said)
    if request.dry_run:
        return await asyncio.to_thread(_plan, home, keep_s, policy)
    if request.compact and not home.is_idle():
        branches = {*home.sessions.running, *(row.branch for row in home.names.live(ready=False))}
        said = f"sessions are running in it: {', '.join(sorted(branches))}"
        raise StateConflict("compact the pool of", str(home.path), said, "stop them first: waypoint stop --all")
    found = await home.jobs.result(home.jobs.start("gc", lambda job: gc_job(home, job, keep_s, policy, budget)))
    assert isinstance(found, GcFacts)
    return found


def _plan(home: Home, keep_s: float, policy: Policy) -> GcFacts:
    found = removal.survey(home.names, time.time() - keep_s, policy)
    return GcFacts(
        dry_run=True,
        removed=[_removed(capture) for capture in home.names.captures_of(found.removable, may_lack=True).values()],
        strangers=home.present_strangers(),
        kept_operations_s=keep_s,
        freed_bytes=0,
        home_bytes=home_bytes(home),
        failed=[],
        kept=_kept(home, found),
    )


async def gc_job(home: Home, job: Job, keep_s: float, policy: Policy, budget: int) -> GcFacts:
    """The job of `gc`. If it is cancelled, it ends after the capture that it is removing."""
    work = _Work(home, job, keep_s, policy, budget)
    return await work.in_thread(work.carry_out)


def relieve(home: Home) -> None:
    """Begin a job of the kind `gc` that removes captures that nothing keeps, the oldest first, until there is room
    (`Outlook.is_short`). Does nothing if a gc is running. What names.db does not know stays.
    """
    with contextlib.suppress(StateConflict):  # a gc is running, which makes more room than this
        home.jobs.start("gc", lambda job: _relieve_job(home, job, whole=False))


async def relieve_whole(home: Home) -> bool:
    """Remove all captures that nothing keeps, because the disk was too full for a capture of unknown size.

    Waits for a running gc and for its own job. Returns whether anything was removed.
    """
    freed = False
    running = home.jobs.running("gc")
    if running is not None:
        with contextlib.suppress(WaypointError):
            freed = bool(await home.jobs.result(running))
    with contextlib.suppress(WaypointError):  # the next gc has begun already
        freed |= bool(await home.jobs.result(home.jobs.start("gc", lambda job: _relieve_job(home, job, whole=True))))
    return freed


async def _relieve_job(home: Home, job: Job, *, whole: bool) -> int:
    """Returns how many captures were removed."""
    work = _Work(home, job, home.keep_operations_s, home.keep_policy)
    return await work.in_thread(functools.partial(work.make_room, whole=whole))


RELIEF = Relief(relieve, relieve_whole)


class _Work:
    """One `gc`."""

    def __init__(
        self, home: Home, job: Job, keep_s: float, policy: Policy = NO_POLICY, budget: int | None = None
    ) -> None:
        """`budget`: None: the home's."""
        self._home = home
        self._job = job
        self._keep_s = keep_s
        self._policy = policy
        self._budget = home.hot_budget_bytes if budget is None else budget
        self._evicted: list[str] = []
        self._failed: list[str] = []
        self.is_cancelled = False

    async def in_thread(self, act: Callable[[], Result]) -> Result:
        """Call `act`, a method of this object, in a thread. If the caller is cancelled, set `is_cancelled`, and wait
        until `act` has ended. If something could not be removed, schedule another try: once the disk has room again,
        nothing else would start one.
        """
        thread = asyncio.ensure_future(asyncio.to_thread(act))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            self.is_cancelled = True
            while not thread.done():
                await asyncio.to_thread(self._home.pool.stop_compacting)
                await asyncio.wait([thread], timeout=_STOP_AGAIN_S)
            raise
        finally:
            if self._home.due_for_removal and not self.is_cancelled:
                asyncio.get_running_loop().call_later(RELIEVE_S, self._home.relieve_later)

    def carry_out(self) -> GcFacts:
        home, before = self._home, home_bytes(self._home)
        home.pool.check_writable()
        self._try("the captures that were mounted", home.mounts.prune)
        chosen = self._remove()
        self._drop_all(chosen)
        self._try("the journals of applies", functools.partial(applying.forget, home.sessions.resources))
        strangers = self._remove_strangers()
        self._try("the store of images", self._collect_images)
        self._try("copies of captures in the store", self._evict)
        self._try("the free space of the pool", home.pool.settle)  # the next command may need it
        if not self.is_cancelled:
            with stage(Stage.SHRINK):
                self._try("the free space of the pool", functools.partial(home.pool.compact, home.is_idle))
        after = home_bytes(home)
        return GcFacts(
            dry_run=False,
            removed=[_removed(capture) for capture in chosen if capture.id not in home.due_for_removal],
            strangers=strangers,
            kept_operations_s=self._keep_s,
            freed_bytes=max(0, before - after),
            home_bytes=after,
            failed=self._failed,
            stays=_stays(home),
            evicted=self._evicted,
            kept=_kept(home, removal.survey(home.names, time.time() - self._keep_s, self._policy)),
        )

    def make_room(self, *, whole: bool = False) -> int:
        """Remove a few captures at a time until there is room; with `whole`, remove all. Then evict captures, if that
        was not enough. Returns how many were removed or evicted.
        """
        home, count = self._home, 0
        while not self.is_cancelled and (whole or home.pool.outlook().is_short):
            chosen = self._remove(AT_ONCE)
            self._drop_all(chosen)
            count += len(chosen)
            if not chosen:
                break
            home.pool.settle()
        self._drop_all([])  # try again what failed while the pool was fuller
        if count:
            log.warning("the disk ran short: %d captures that nothing keeps were removed", count)
        self._try("copies of captures in the store", self._evict)
        return count + len(self._evicted)

    @stage(Stage.EVICT)
    def _evict(self) -> None:
        """Evict captures, the least recently used first, while the disk is short or they exceed the budget."""
        home = self._home
        for capture in filter(home.captures.images.is_hot, home.captures.by_use()):
            if self.is_cancelled or not (home.pool.outlook().is_short or home.captures.exceed(self._budget)):
                break
            try:
                if home.captures.evict(capture):
                    self._evicted.append(capture.id)
                    home.pool.settle()
            except StoreDamaged as error:
                log.warning("%s; it is stored again", one_line(str(error)))
                home.storing.note({capture.id: False})
        if self._evicted:
            log.info("evicted captures: %d", len(self._evicted))
            home.storing.later()  # if that was not enough, captures without a name are stored, to be evicted next

    @stage(Stage.COLLECT)
    def _collect_images(self) -> None:
        home = self._home
        if home.captures.images.store.exists():
            with home.storing.lock:
                home.captures.images.gc(sorted(set(home.names.images().values())))

    def _remove(self, limit: int | None = None) -> list[Capture]:
        home = self._home
        return removal.remove(home.captures, home.names, time.time() - self._keep_s, limit, self._policy)

    def _drop_all(self, chosen: list[Capture]) -> None:
        """Remove from disk the captures `chosen`, and those that an earlier gc could not remove."""
        due = self._home.due_for_removal
        due |= {capture.id: capture for capture in chosen}
        whole = list(due.values())
        if whole:
            self._job.report(items=0, items_total=len(whole))
        with stage(Stage.REMOVE, total=len(whole)) as under_way:
            for number, capture in enumerate(whole):
                if self.is_cancelled:
                    return
                reach(Step.REMOVING)
                drop = functools.partial(self._home.captures.drop, capture)
                if self._try(f"capture {capture.id[:12]}", drop):
                    del due[capture.id]
                self._job.report(items=number + 1, items_total=len(whole))
                under_way.report(number + 1)

    def _remove_strangers(self) -> list[StrangerFacts]:
        """Remove what lay in the home when the daemon started and is unknown to names.db; return what was removed.

        The owner is unknown, so this is done only for root and for the user whom root trusts fully.
        """
        is_restricted = rights.is_restricted(self._home.sessions.resources)
        there = {} if is_restricted else {(one.kind, one.id): one for one in self._home.present_strangers()}
        gone = []
        for inventory in inventories(self._home.sessions.resources) if there else ():
            for ident in inventory.unknown():
                stranger = there.get((inventory.kind, ident))
                if stranger is not None and not self.is_cancelled:
                    is_gone = self._try(stranger.path, functools.partial(inventory.remove, ident))
                    gone += [stranger] if is_gone else []
        return gone

    def _try(self, what: str, act: Callable[[], object]) -> bool:
        """Call `act`; if it fails, log and note the reason. Returns whether `act` succeeded."""
        try:
            act()
        except (WaypointError, OSError) as error:
            log.error("gc cannot remove %s: %s", what, error)
            said, step = (error.said, error.next_step) if isinstance(error, WaypointError) else (error.strerror, "")
            self._failed.append(f"{what}: {said}" + (f"; next: {step}, and start the gc again" if step else ""))
            return False
        return True


def _stays(home: Home) -> list[str]:
    """Return, in words, which free space stays in the pool, and why."""
    if why := home.pool.why_stays():
        return [f"the free space of the pool: {why}"]
    with contextlib.suppress(WaypointError):  # the disk fails; `failed` says so
        if spare := home.pool.spare_bytes():
            when = "it is given back when no session lives ('waypoint gc --compact')"
            return [f"{mib(spare)} of free space in the pool: {when}"]
    return []


def _kept(home: Home, found: removal.Survey) -> list[KeptFacts]:
    captures = home.names.captures_of(list(found.kept.keys() - found.removed), may_lack=True)
    names = home.names.names_of_all(list(captures))
    return [
        KeptFacts(
            capture=capture.id,
            branch=capture.branch,
            created=iso_time(capture.created),
            names=names[capture.id],
            why=sorted(found.kept[capture.id], key=get_args(removal.Why).index),
        )
        for capture in sorted(captures.values(), key=lambda capture: capture.created)
    ]


def _removed(capture: Capture) -> RemovedFacts:
    processes = capture.layer(ProcessesLayer)
    return {
        "capture": capture.id,
        "branch": capture.branch,
        "created": iso_time(capture.created),
        "tier": capture.tier,
        "size_bytes": processes.size_bytes if processes else 0,
    }
