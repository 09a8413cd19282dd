"""Giving back what nothing keeps: `gc`."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from waypoint.branch import removal
from waypoint.branch.keeping_policy import Dated, KeepPolicy, kept_by
from waypoint.capture.steps import Step, reach
from waypoint.model.errors import StateConflict, WaypointError
from waypoint.model.facts import GcFacts, RemovedFacts, SparedFacts, StrangerFacts
from waypoint.model.records import Capture
from waypoint.model.requests import GcRequest
from waypoint.model.times import iso_time
from waypoint.service.background.jobs import Job
from waypoint.service.durable.applied_folder import has_applied
from waypoint.service.durable.by_itself import ByItself, make_room_by_evicting
from waypoint.service.durable.home_shelves import shelves_beside
from waypoint.service.durable.keeping import bring_base, compact, recall
from waypoint.service.home import RELIEVE_S, Home, Upkeep
from waypoint.service.usage import home_bytes
from waypoint.session.birth import rights
from waypoint.session.live.shelves import shelves_of
from waypoint.store.content.home_key import left_in, remove_left
from waypoint.upper.contract import mib

Told = TypeVar("Told")

AT_ONCE = 8
"""When the disk runs short, how many captures are removed before the pool's room is looked at again."""
SHRINK_AGAIN_BYTES = 16 << 20
"""So much more must be free in the pool than after a shrink before it is shrunk again."""

log = logging.getLogger(__name__)


async def gc(home: Home, request: GcRequest) -> GcFacts:
    """Remove the captures that no name stands for and no kept operation can bring back, and what names.db does not
    know, then let the pool give its free space back to the disk. A job of the kind `gc` does it, which goes on when the
    client has gone. What the daemon removes by itself at the moment (`relieve`) is waited for. With `request.dry_run`
    only tell what would be removed. Raises StateConflict if another gc that was asked for is running, Failed.
    """
    keep_s = home.config.keep_operations_s if request.keep_operations_s is None else request.keep_operations_s
    if keep_s < home.config.keep_operations_s:
        said = "others could not take back what they can now"
        rights.check_unbound(home.sessions.resources, "gc with", f"--keep-operations {keep_s:g}s", said)
    if request.dry_run:
        return await asyncio.to_thread(_tell, home, request, keep_s)
    while (running := home.jobs.running("gc")) is not None and running.is_unasked:
        with contextlib.suppress(WaypointError, OSError):  # its own error, and no reason to do nothing here
            await home.jobs.result(running)
    found = await home.jobs.result(home.jobs.start("gc", lambda job: gc_job(home, job, keep_s, request)))
    assert isinstance(found, GcFacts)
    return found


def _tell(home: Home, request: GcRequest, keep_s: float) -> GcFacts:
    found = removal.survey(home.names, time.time() - keep_s, home.between)
    spared = _spared(home, _policy_of(request), found)
    kept = {one["capture"] for one in spared}
    removable = [capture for capture in found.removable if capture not in kept]
    shown = home.captures.shown()
    free = [capture for capture in removable if capture not in shown]
    return GcFacts(
        dry_run=True,
        removed=[_removed(capture) for capture in home.names.captures_of(free, may_lack=True).values()],
        strangers=_strangers(home),
        kept_operations_s=keep_s,
        freed_bytes=0,
        home_bytes=home_bytes(home),
        failed=[],
        stays=_mounted(shown, removable),
        spared=spared,
    )


def _policy_of(request: GcRequest) -> KeepPolicy:
    return KeepPolicy(*(getattr(request, f"keep_{kind}") or 0 for kind in KeepPolicy._fields))


def _spared(home: Home, policy: KeepPolicy, found: removal.Survey) -> list[SparedFacts]:
    """The captures that are kept, the newest first: what names and operations keep, as it was `found`, and what the
    policy does.
    """
    captures = [one for one in home.names.captures() if one.id not in found.removed]
    home.between()
    by_policy = kept_by(policy, [Dated(one.id, one.branch, one.created) for one in captures])
    chosen = sorted(
        (one for one in captures if one.id in found.why or one.id in by_policy), key=lambda one: -one.created
    )
    return [
        SparedFacts(
            capture=one.id,
            branch=one.branch,
            created=iso_time(one.created),
            why=[*found.why.get(one.id, ()), *by_policy.get(one.id, ())],
        )
        for one in chosen
    ]


def _strangers(home: Home) -> list[StrangerFacts]:
    """What a gc removes of what lay in the home when the daemon started and is unknown to names.db. Nobody knows whose
    it is, so that is nothing but for root and for the user whom root trusts fully.
    """
    return [] if rights.is_bound(home.sessions.resources) else home.present_strangers()


def _mounted(shown: Mapping[str, str], removable: Iterable[str]) -> list[str]:
    """In words, which of the captures that are removable stay, as their files are mounted (`shown`)."""
    mounted = ((capture, shown[capture]) for capture in removable if capture in shown)
    return [f"capture {capture[:12]}: it is mounted at {point}: umount {point}" for capture, point in mounted]


async def gc_job(home: Home, job: Job, keep_s: float, request: GcRequest) -> GcFacts:
    """The work of `gc`, which keeps operations of the last `keep_s` seconds, and what the policy of `request` keeps.
    If the job is cancelled, it ends after the capture that it is removing.
    """
    work = _Work(home, job, keep_s)
    policy = _policy_of(request)
    if any(policy):
        surveyed = await asyncio.to_thread(removal.survey, home.names, time.time() - keep_s, home.between)
        work.spared = await asyncio.to_thread(_spared, home, policy, surveyed)
    with work.tried_again():
        found = await work.in_thread(work.carry_out)
        return await _with_store(home, found, [one for one in _strangers(home) if one.kind == "image"])


async def _with_store(home: Home, found: GcFacts, images: list[StrangerFacts]) -> GcFacts:
    """What is told of a gc, after the store has given back what no capture needs any more, and `images`."""
    try:
        done = await compact(home, patient=True, strangers=[one.id for one in images])
    except WaypointError as error:
        step = f"; next: {error.next_step}, and start the gc again" if error.next_step else ""
        return dataclasses.replace(found, failed=[*found.failed, f"the store: {error.said}{step}"])
    said = f"{mib(done.waiting_bytes)} of the store: somebody reads from it, such as an export, and removes them then"
    return dataclasses.replace(
        found,
        strangers=[*found.strangers, *images],
        freed_bytes=found.freed_bytes + done.freed_bytes,
        home_bytes=max(0, found.home_bytes - done.freed_bytes),
        stays=[*found.stays, *([said] if done.waiting_bytes else [])],
    )


def relieve(home: Home) -> None:
    """Begin a job of the kind `gc` that makes room; does nothing if a gc is running. The job gives free space of the
    pool back to the disk if that runs short, and removes captures that nothing keeps, the oldest first, until there is
    room (`Outlook.is_short`). What names.db does not know stays.
    """
    with contextlib.suppress(StateConflict):  # a gc is running, which makes more room than this
        home.jobs.start("gc", lambda job: _relieve_job(home, job, whole=False), is_unasked=True)


async def relieve_whole(home: Home) -> bool:
    """As `relieve`, but all that can be freed is: the disk was too full for a capture, whose size nobody knows. Waits
    for the end of a gc that is running, and for that of the job. Returns whether anything was freed.
    """
    freed = False
    running = home.jobs.running("gc")
    if running is not None:
        with contextlib.suppress(WaypointError):
            freed = bool(await home.jobs.result(running))
    with contextlib.suppress(WaypointError):  # the next gc has begun already
        job = home.jobs.start("gc", lambda job: _relieve_job(home, job, whole=True), is_unasked=True)
        freed |= bool(await home.jobs.result(job))
    return freed


async def _relieve_job(home: Home, job: Job, *, whole: bool) -> int:
    """Returns how many pieces were freed: captures, and of the pool."""
    work = _Work(home, job, home.config.keep_operations_s)
    with work.tried_again():
        count = await work.in_thread(functools.partial(work.make_room, whole=whole))
        count += await make_room_by_evicting(home)
        if count:
            with contextlib.suppress(WaypointError):  # such as a writer to the store; the next gc does it
                await compact(home, patient=False)
        return count


def _recover(home: Home) -> None:
    if left_in(str(home.path)):
        home.events.loop.run_in_executor(None, _remove_left, home)
    if has_applied(home):  # most homes need not load what sees to it
        from waypoint.service.durable.applying import recover

        recover(home)


def _remove_left(home: Home) -> None:
    try:
        left = remove_left(str(home.path))
    except OSError as error:
        log.error("what is left of a store that was not encrypted stays, until the next setup: %s", error)
        return
    if left:
        log.warning("removed %s, what a setup had left of the store before it was encrypted", left)


def _forget_expired(home: Home) -> None:
    if has_applied(home):  # most homes need not load what sees to it
        from waypoint.service.durable.applying import forget_expired

        forget_expired(home)


UPKEEP = Upkeep(relieve, relieve_whole, recall, bring_base, ByItself, _recover)


class _Work:
    """One `gc`."""

    def __init__(self, home: Home, job: Job, keep_s: float) -> None:
        self._home = home
        self._job = job
        self._keep_s = keep_s
        self.spared: list[SparedFacts] = []
        self._failed: list[str] = []
        self.is_cancelled = False

    @contextlib.contextmanager
    def tried_again(self) -> Iterator[None]:
        """If something could not be removed in the `with` block, which is the whole job, `relieve` is asked to try
        again later, because nothing else would once the disk has room again.
        """
        try:
            yield
        finally:
            if self._home.due_for_removal and not self.is_cancelled:
                asyncio.get_running_loop().call_later(RELIEVE_S, self._home.relieve_later)

    async def in_thread(self, act: Callable[[], Told]) -> Told:
        """Call `act`, a method of this object, in a thread. If the caller is cancelled, `is_cancelled` tells `act` to
        end, and the cancellation goes on when `act` has ended.
        """
        thread = asyncio.ensure_future(asyncio.to_thread(act))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            self.is_cancelled = True
            await asyncio.wait([thread])
            raise

    def carry_out(self) -> GcFacts:
        home, before = self._home, _held_bytes(self._home)
        home.pool.check_writable()
        chosen = self._remove()
        self._drop_all()
        strangers = self._remove_strangers()
        self._try("what was kept of the machine's files", lambda: _forget_expired(home))
        self._try("the free space of the pool", self._shrink)
        removable: list[str] = []
        if shown := home.captures.shown():
            since, spared = time.time() - self._keep_s, [one["capture"] for one in self.spared]
            removable = removal.survey(home.names, since, home.between, spared).removable
        return GcFacts(
            dry_run=False,
            removed=[_removed(capture) for capture in chosen if capture.id not in home.due_for_removal],
            strangers=strangers,
            kept_operations_s=self._keep_s,
            freed_bytes=max(0, before - _held_bytes(home)),
            home_bytes=home_bytes(home),
            failed=self._failed,
            spared=self.spared,
            stays=[
                *_mounted(shown, removable),
                *([f"the free space of the pool: {why}"] if (why := home.pool.why_stays()) else []),
            ],
        )

    def make_room(self, *, whole: bool = False) -> int:
        """Shrink the pool where the disk runs short, and remove a few captures at a time, until there is room. `whole`:
        until nothing is left that could go. Returns how many captures were removed, and one more if the pool shrank.
        """
        home, count, given = self._home, 0, 0
        while not self.is_cancelled:
            given += self._give_back(lambda: whole or home.pool.outlook().is_disk_low)
            if not whole and not home.pool.outlook().is_short:
                break
            chosen = self._remove(AT_ONCE)
            if not chosen:
                break
            self._drop_all()
            count += len(chosen)
            home.pool.settle()
        self._drop_all()  # what could not be removed while the pool was fuller
        if count or given:
            said = "the disk ran short: %d captures that nothing keeps were removed, and the pool gave %s back"
            log.warning(said, count, mib(given))
        return count + bool(given)

    def _give_back(self, is_wanted: Callable[[], bool]) -> int:
        """Shrink the pool as long as `is_wanted`. Returns by how many bytes.

        As long as the disk is low this is asked again and again, so that what could not be given back is not tried
        anew before more is free: a try moves what lies in the pool.
        """
        home, given = self._home, 0

        def shrink() -> None:
            nonlocal given
            given = home.pool.shrink(lambda: not self.is_cancelled and is_wanted(), lambda: not home.names.live())

        free = home.pool.free_bytes()
        home.free_in_vain_bytes = min(free, home.free_in_vain_bytes)
        if is_wanted() and free > home.free_in_vain_bytes + SHRINK_AGAIN_BYTES:
            self._try("the free space of the pool", shrink)
            home.free_in_vain_bytes = home.pool.free_bytes()
        return given

    def _remove(self, limit: int | None = None) -> list[Capture]:
        """Take captures off the record, which are due for removal then; a power loss does not put them back on it."""
        home = self._home
        since, spared = time.time() - self._keep_s, [one["capture"] for one in self.spared]
        chosen = removal.remove(home.captures, home.names, since, limit, home.between, spared)
        home.due_for_removal |= {capture.id: capture for capture in chosen}
        home.names.sync()
        return chosen

    def _drop_all(self) -> None:
        """Remove from disk the captures that are due, also those that an earlier gc could not remove. If this is cut
        off or fails, the next gc or the next daemon removes what is left.
        """
        due = self._home.due_for_removal
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
        """Remove strangers, but not those in the store, which `_with_store` does. Returns what was removed."""
        home = self._home
        there = {(str(one.kind), one.id): one for one in _strangers(home) if one.kind != "image"}
        shelves = [*shelves_of(home.sessions.resources), *shelves_beside(home.path, home.names)] if there else []
        gone = []
        for shelf in shelves:
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

    def _try(self, what: str, act: Callable[[], object]) -> bool:
        """Call `act`; if it fails, note why. Returns whether `act` has worked."""
        try:
            act()
        except (WaypointError, OSError) as error:
            log.error("gc cannot remove %s: %s", what, error)
            said, step = (error.said, error.next_step) if isinstance(error, WaypointError) else (error.strerror, "")
            self._failed.append(f"{what}: {said}" + (f"; next: {step}, and start the gc again" if step else ""))
            return False
        return True


def _held_bytes(home: Home) -> int:
    """What the home takes of the disk, and of memory for images that come to the disk yet."""
    return home_bytes(home) + home.captures.measures.memory_bytes()


def _removed(capture: Capture) -> RemovedFacts:
    processes = capture.layers.processes
    return {
        "capture": capture.id,
        "branch": capture.branch,
        "created": iso_time(capture.created),
        "tier": capture.tier,
        "size_bytes": processes.size_bytes if processes else 0,
    }
