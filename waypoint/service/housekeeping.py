"""`gc`: removing captures that nothing keeps and files of unknown origin, on request and when the disk runs short."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar, get_args

import msgspec

from waypoint.branch import removal
from waypoint.capture.steps import Step, reach
from waypoint.linux.tasks.stages import stage
from waypoint.model.errors import StateConflict, StoreDamaged, WaypointError, one_line
from waypoint.model.facts import GcFacts, KeptFacts, RemovedFacts
from waypoint.model.records import Capture, ProcessesLayer
from waypoint.model.requests import GcRequest
from waypoint.model.session_facts import StrangerFacts
from waypoint.model.stages import Stage
from waypoint.model.times import iso_time
from waypoint.records.names import Names
from waypoint.service.background.jobs import Job
from waypoint.service.held_space import held
from waypoint.service.home import RELIEVE_S, Home, Relief
from waypoint.service.keeping import Keeping
from waypoint.service.undo_space import LEAST_HOT_BYTES, MOST_HOT_BYTES, UndoSpace, hot_limit
from waypoint.service.usage import home_bytes
from waypoint.session import applying
from waypoint.session.adopt import inventories
from waypoint.session.birth import rights
from waypoint.upper.contract import mib

Result = TypeVar("Result")

AT_ONCE = 8
"""When the disk runs short, how many captures are removed before the free space is measured again."""
_ROUNDS = 10
"""How often captures for undo are stored and evicted until there are few enough: others are made meanwhile."""
_STOP_AGAIN_S = 0.1
"""Seconds between attempts of a cancelled job to interrupt its compaction, which may not have begun yet."""

log = logging.getLogger(__name__)


async def gc(home: Home, request: GcRequest) -> GcFacts:
    """Remove the captures that no name stands for and no kept operation can restore, and what names.db does not
    know; then compact the pool if no session lives. This is a job, which continues when the client has gone.

    With `dry_run` only report what would be removed. Raises StateConflict if a gc is running, or with `compact` if a
    session lives.
    """
    own = _own_since(home, request)
    keeping = _asked(home, request if own is None else msgspec.structs.replace(request, keep_operations_s=None))
    if request.dry_run:
        return await asyncio.to_thread(_plan, home, keeping, own)
    if request.compact and not home.sessions.running:
        await home.standing_by.end_all()
    if request.compact and not home.is_idle():
        branches = {*home.sessions.running, *(row.branch for row in home.names.live(ready=False))}
        said = f"sessions are running in it: {', '.join(sorted(branches))}"
        raise StateConflict("compact the pool of", str(home.path), said, "stop them first: waypoint stop --all")
    await _end_relief(home)
    found = await home.jobs.result(home.jobs.start("gc", lambda job: gc_job(home, job, keeping, own)))
    assert isinstance(found, GcFacts)
    return found


def _asked(home: Home, request: GcRequest) -> Keeping:
    """What this `gc` is to keep. Raises NotAllowed if other users would lose something."""
    usual = home.keeping
    asked = zip((request.keep_last, request.keep_daily), usual.policy, strict=True)
    policy = removal.Policy(*(one if number is None else number for number, one in asked))
    keeping = Keeping(
        operations_s=usual.operations_s if request.keep_operations_s is None else request.keep_operations_s,
        policy=policy,
        hot_bytes=usual.hot_bytes if request.hot_budget_bytes is None else request.hot_budget_bytes,
        undo_bytes=usual.undo_bytes if request.undo_budget_bytes is None else request.undo_budget_bytes,
    )
    fewer_undos = "other users could then undo fewer of their operations"
    for is_less, option, said in (
        (keeping.operations_s < usual.operations_s, f"--keep-operations {keeping.operations_s:g}s", fewer_undos),
        (
            any(one < other for one, other in zip(policy, usual.policy, strict=True)),
            f"--keep-last {policy.last} and --keep-daily {policy.daily}",
            "fewer captures of other users would be kept",
        ),
        (
            keeping.hot_bytes < usual.hot_bytes,
            f"--hot-budget {keeping.hot_bytes}",
            "captures of other users would take longer to restore",
        ),
        (keeping.undo_bytes < usual.undo_bytes, f"--undo-budget {keeping.undo_bytes}", fewer_undos),
    ):
        if is_less:
            rights.check_unrestricted(home.sessions.resources, "gc with", option, said)
    return keeping


def _own_since(home: Home, request: GcRequest) -> "_Own | None":
    """What a user who may not decide for others gives up: captures that only undo needs, of operations before then."""
    user, kept_s = rights.restricted_caller(home.sessions.resources), request.keep_operations_s
    if user is None or kept_s is None or kept_s >= home.keeping.operations_s:
        return None
    return _Own(user.uid, time.time() - kept_s)


class _Own(NamedTuple):
    """The captures of the user `uid` that only operations before `since` need, to be undone."""

    uid: int
    since: float

    def choose(self, names: Names, found: removal.Survey) -> list[str]:
        first = names.first_since(self.since)
        old = [one for one in found.only_undo() if found.last_undo[one] < first]
        captures = names.captures_of(old, may_lack=True).values()
        return [capture.id for capture in captures if capture.setting.user.uid == self.uid]


async def remove_now(home: Home, captures: Collection[str]) -> None:
    """Remove these captures, unless something besides undo needs them, and free their space. A job like `gc`."""
    await _end_relief(home)
    while (running := home.jobs.running("gc")) is not None:
        with contextlib.suppress(WaypointError):
            await home.jobs.result(running)

    async def work(job: Job) -> int:
        working = _Work(home, job, home.keeping)
        return await working.in_thread(functools.partial(working.remove_now, captures))

    await home.jobs.result(home.jobs.start("gc", work))


async def _end_relief(home: Home) -> None:
    """Interrupt the daemon's own job of this kind, since a requested `gc` does all of its work."""
    running = home.jobs.running("gc")
    if running is not None and running.id == home.relieving:
        await home.jobs.cancel(running.id)


def _plan(home: Home, keeping: Keeping, own: _Own | None) -> GcFacts:
    found = keeping.survey(home.names)
    removable = [*found.removable, *(own.choose(home.names, found) if own is not None else ())]
    return GcFacts(
        dry_run=True,
        removed=[_removed(capture) for capture in home.names.captures_of(removable, may_lack=True).values()],
        strangers=home.present_strangers(),
        kept_operations_s=keeping.operations_s,
        freed_bytes=0,
        home_bytes=home_bytes(home),
        failed=[],
        kept=_kept(home, found),
        held=held(home, found),
    )


async def gc_job(home: Home, job: Job, keeping: Keeping, own: _Own | None = None) -> GcFacts:
    """The job of `gc`. If it is cancelled, it ends after the capture that it is removing."""
    work = _Work(home, job, keeping, own)
    return await work.in_thread(work.carry_out)


def relieve(home: Home) -> None:
    """Begin a job of the kind `gc` that removes captures that nothing keeps, the oldest first, until there is room
    (`Outlook.is_short`), and has captures keep to the budgets. Does nothing if a gc is running. What names.db does not
    know stays.
    """
    with contextlib.suppress(StateConflict):  # a gc is running, which makes more room than this
        home.relieving = home.jobs.start("gc", lambda job: _relieve_job(home, job, whole=False)).id


def is_due(home: Home) -> bool:
    """Whether captures exceed a budget of the home, and `relieve` could do something about it."""
    keeping = home.keeping
    space = UndoSpace(home, keeping.survey(home.names))
    if space.exceeds(hot_limit(keeping.undo_bytes)) or space.first_to_keep(keeping.undo_bytes):
        return True
    can_evict = any(map(home.captures.images.is_hot, home.captures.by_use())) or bool(space.beyond(0))
    return can_evict and home.captures.exceed(keeping.hot_bytes)


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
    work = _Work(home, job, home.keeping)
    return await work.in_thread(functools.partial(work.make_room, whole=whole))


RELIEF = Relief(relieve, relieve_whole, is_due)


class _Work:
    """One `gc`."""

    def __init__(self, home: Home, job: Job, keeping: Keeping, own: _Own | None = None) -> None:
        self._own = own
        self._home = home
        self._job = job
        self._keeping = keeping
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
        if (own := self._own) is not None:
            chosen += self._give_up(lambda found: own.choose(home.names, found))
        self._drop_all(chosen)
        self._try("the journals of applies", functools.partial(applying.forget, home.sessions.resources))
        strangers = self._remove_strangers()
        self._try("captures that only undo needs", functools.partial(self._bound_undo, LEAST_HOT_BYTES, chosen))
        self._try("the store of images", self._collect_images)
        self._try("copies of captures in the store", self._evict)
        self._try("the free space of the pool", home.pool.settle)  # the next command may need it
        if not self.is_cancelled:
            with stage(Stage.SHRINK):
                self._try("the free space of the pool", functools.partial(home.pool.compact, home.is_idle))
        after, found = home_bytes(home), self._survey()
        return GcFacts(
            dry_run=False,
            removed=[_removed(capture) for capture in chosen if capture.id not in home.due_for_removal],
            strangers=strangers,
            kept_operations_s=self._keeping.operations_s,
            freed_bytes=max(0, before - after),
            home_bytes=after,
            failed=self._failed,
            stays=_stays(home),
            evicted=self._evicted,
            kept=_kept(home, found),
            held=held(home, found),
        )

    def remove_now(self, captures: Collection[str]) -> int:
        chosen = self._give_up(lambda _: captures)
        self._drop_all(chosen)
        self._try("the store of images", self._collect_images)
        self._try("the free space of the pool", self._home.pool.settle)
        return len(chosen)

    def _give_up(self, choose: Callable[[removal.Survey], Collection[str]]) -> list[Capture]:
        home, keeping = self._home, self._home.keeping
        return removal.give_up(home.captures, home.names, choose, keeping.since(), keeping.policy)

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
            self._try("the store of images", self._collect_images)  # they may have been there alone
        removed = list[Capture]()
        self._try("captures that only undo needs", functools.partial(self._bound_undo, MOST_HOT_BYTES, removed))
        self._try("copies of captures in the store", self._evict)
        return count + len(removed) + len(self._evicted)

    def _bound_undo(self, most: int, removed: list[Capture]) -> None:
        """Store and evict the oldest captures that only undo needs, until the others take at most `most` outside of the
        store, or less with a small budget. Then, if they exceed the budget, remove those of the oldest operations.
        `removed`: gets what was removed.
        """
        home, limit = self._home, min(most, hot_limit(self._keeping.undo_bytes))
        space = UndoSpace(home, self._survey())
        if space.exceeds(limit):
            removed += self._expire()  # what nothing keeps need not be stored
        for _ in range(_ROUNDS):
            if not space.exceeds(limit) or not self._store_and_evict(space.beyond(limit)):
                break
            space = UndoSpace(home, self._survey())
        if first := space.first_to_keep(self._keeping.undo_bytes):
            log.warning("operations before %d cannot be undone any more: their captures exceed the budget", first)
            removed += self._expire(first)
            self._collect_images()

    def _expire(self, first: int = 0) -> list[Capture]:
        """Remove what nothing keeps if no operation before `first` can be undone. Returns what was removed."""
        chosen = self._remove(None, first)
        self._drop_all(chosen)
        return chosen

    def _store_and_evict(self, captures: list[Capture]) -> bool:
        """Returns whether any was evicted. All are stored before the first is evicted, also those with a name: a
        capture on disk shows which files the next one has changed.
        """
        home, wanted, before = self._home, {capture.id for capture in captures}, len(self._evicted)
        whole = sorted([*home.storing.due(), *captures] if captures else [], key=lambda capture: capture.created)
        stored = list[Capture]()
        with stage(Stage.STORE, total=len(whole)) as under_way:
            for number, capture in enumerate(whole, 1):
                if not self.is_cancelled and home.storing.store_now(capture) and capture.id in wanted:
                    stored.append(capture)
                under_way.report(number)
                self._job.report(items=number, items_total=len(whole))
        with stage(Stage.EVICT, total=len(stored)) as under_way:
            for number, capture in enumerate(stored, 1):
                if not self.is_cancelled:
                    self._evict_one(capture)
                under_way.report(number)
        if stored:
            home.pool.settle()
        return len(self._evicted) > before

    @stage(Stage.EVICT)
    def _evict(self) -> None:
        """Evict captures, the least recently used first, while the disk is short or they exceed the budget. If that is
        not enough, store and evict those that only undo needs.
        """
        home = self._home
        for capture in filter(home.captures.images.is_hot, home.captures.by_use()):
            if self.is_cancelled or not self._is_too_much():
                break
            self._evict_one(capture)
            home.pool.settle()
        else:
            if self._is_too_much():
                self._store_and_evict(UndoSpace(home, self._survey()).beyond(0))
        if self._evicted:
            log.info("evicted captures: %d", len(self._evicted))

    def _is_too_much(self) -> bool:
        return self._home.pool.outlook().is_short or self._home.captures.exceed(self._keeping.hot_bytes)

    def _evict_one(self, capture: Capture) -> None:
        try:
            if self._home.captures.evict(capture):
                self._evicted.append(capture.id)
        except StoreDamaged as error:
            log.warning("%s; it is stored again", one_line(str(error)))
            self._home.storing.note({capture.id: False})

    def _survey(self) -> removal.Survey:
        return self._keeping.survey(self._home.names)

    def _collect_images(self) -> None:
        home = self._home
        if home.captures.images.store.exists():
            with stage(Stage.COLLECT, unit="bytes") as under_way, home.storing.lock:
                home.captures.images.gc(sorted(set(home.names.images().values())), under_way.report)

    def _remove(self, limit: int | None = None, first: int = 0) -> list[Capture]:
        home, keeping = self._home, self._keeping
        return removal.remove(home.captures, home.names, keeping.since(), limit, keeping.policy, first)

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
                self._home.sessions.resources.templates.forget(capture)
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
    stays = [f"the free space of the pool: {why}"] if (why := home.pool.why_stays()) else []
    with contextlib.suppress(WaypointError):  # the disk fails; `failed` says so
        if spare := home.pool.spare_bytes():
            when = "it is given back when no session lives ('waypoint gc --compact')"
            stays.append(f"{mib(spare)} of free space in the pool: {when}")
    return stays


def _kept(home: Home, found: removal.Survey) -> list[KeptFacts]:
    captures = home.names.captures_of(list(found.kept.keys() - found.removed), may_lack=True)
    names = home.names.names_with_bases(list(captures))
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
