"""Captures become images: they are put into the home's store, where they outlive a power loss."""

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Collection

from waypoint.capture.base_files.base_listing import CapturedBase
from waypoint.capture.base_files.mentioned import BaseFile
from waypoint.capture.captures import Held
from waypoint.capture.storing.orders import (
    BringBase,
    BroughtBase,
    Compact,
    Compacting,
    Ingest,
    Ingested,
    OfBase,
    Recalled,
    Verified,
    Verify,
)
from waypoint.capture.torn import MAY_BE_TORN
from waypoint.launch.ground import homes
from waypoint.model.details.store_facts import EvictedFacts, VerifiedFacts
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged, UnknownName, UsageProblem, WaypointError
from waypoint.model.records import Capture, Standing
from waypoint.model.requests import EvictRequest, VerifyRequest
from waypoint.service.background.jobs import Job
from waypoint.service.durable.store_process import carry_out, is_missing, keep_record, put_back_or_give_up
from waypoint.service.home import Home
from waypoint.session.birth import rights
from waypoint.session.live.holding import holding
from waypoint.store import failures
from waypoint.store.content.home_key import STORE
from waypoint.store.content.store_folder import StoreFolder
from waypoint.store.reading import content_removed
from waypoint.upper.contract import refusals

log = logging.getLogger(__name__)

_MOST_ALIKE = 4
"""Images in which files of the base are looked up that need not be read again."""
_OF_ALL = (*map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS)), failures.IN_USE)


def store_of(home: Home) -> str:
    return str(home.path / STORE)


async def make_durable(home: Home, capture_id: str) -> Standing:
    """Put the capture into the store, after all captures that it goes on from and that are not there yet. Waits for
    others that are being put. On return the capture, and all of those that are whole, survive a power loss, and so does
    what is on record of it.

    Raises UnknownName if the capture has been removed, Failed (the disk is full; the capture may be torn),
    StoreDamaged.
    """
    while not (standing := home.names.standing(capture_id)).durable:
        _check_can_be_put(home, capture_id, standing)  # each time: it may go while others are waited for
        if not await others_end(home):
            await home.jobs.result(home.jobs.start("store", lambda job: put_job(home, job, capture_id)))
    await asyncio.to_thread(home.names.sync)  # who stands for it, too
    return standing


def _check_can_be_put(home: Home, capture_id: str, standing: Standing) -> None:
    """Raises UnknownName, Failed for what `put_job` leaves out."""
    if standing.removed:
        raise content_removed(capture_id)
    if home.captures.torn.may_be(capture_id):
        next_step = "restore it, see whether all is there, and checkpoint that: waypoint checkpoint NAME --wait"
        raise Failed("put into the store", f"the capture {capture_id[:12]}", MAY_BE_TORN, next_step)


async def recall(home: Home, held: Held) -> None:
    """Bring the content of the capture back from the store, if it is there. Raises StoreDamaged, Failed (the disk is
    full); then nothing is left of the try.
    """
    standing = home.names.standing(held.capture.id)
    if standing.image is None or not standing.durable:
        return
    staging = held.staging()
    with home.names.change("recall") as change:
        change.doom(staging.tree)
    with refusals("bring back", f"the capture {held.capture.id[:12]}"):
        try:
            order = await asyncio.to_thread(staging.order, store_of(home), standing.image)
            await carry_out(home, order, Recalled)
            await asyncio.to_thread(staging.publish)
            await asyncio.to_thread(home.captures.torn.mend, held.capture.id)
        finally:
            await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(staging.remove)))


async def bring_base(home: Home, held: Held, tree: str) -> list[BaseFile]:
    """Bring the files of the base that the capture has and the machine has otherwise into the upper tree at the path
    `tree`, from the store, once for all who bring it back; "": only to `CapturedBase.brought`. Returns which. Raises
    StoreDamaged, CannotCapture if they cannot lie over what the machine has there, Failed.
    """
    base = held.base
    async with home.captures.moves.turn(held.capture.id):
        changed = await asyncio.to_thread(base.differing)
        lacking = await asyncio.to_thread(base.not_brought, changed)
        if lacking:
            same = await _bring_from_store(home, held, lacking)
            changed = [file for file in changed if file not in same]
        if changed and tree:
            await asyncio.to_thread(_give, base, tree)
    return changed


async def _bring_from_store(home: Home, held: Held, files: list[BaseFile]) -> set[BaseFile]:
    """Returns the files that have not been brought, since the machine has their content."""
    image = home.names.standing(held.capture.id).image or _twin(home, held.capture)
    if not image:  # it is just being put
        return set(files)
    base = held.base
    await asyncio.to_thread(os.makedirs, base.brought, 0o700, exist_ok=True)
    order = BringBase(store=store_of(home), image=image, base=base.base, tree=base.brought, files=files)
    same = set(files) - set((await carry_out(home, order, BroughtBase)).files)
    if same:
        with contextlib.suppress(OSError):  # such as a full disk: it is found out again
            await asyncio.to_thread(base.note_same, same)
    return same


def _give(base: CapturedBase, tree: str) -> None:
    with refusals("bring files of the base to", tree):
        base.give(tree)


async def evict(home: Home, request: EvictRequest) -> EvictedFacts:
    """Remove the content of captures that are in the store, whole: those that `request.names` stand for, or `all`. They
    are brought back from there by who needs them. What somebody holds stays; of who has the own things only, `all` are
    the own ones. Raises UnknownName, UsageProblem, NotAllowed, StoreDamaged.
    """
    resources = home.sessions.resources
    if bool(request.names) == request.all:
        said = "names and all exclude each other" if request.all else "neither names nor all"
        raise UsageProblem("evict", "captures", said, "name the captures, or all: waypoint evict --all")
    chosen = [home.names.find(name) for name in request.names]
    for name, capture in zip(request.names, chosen, strict=True):
        rights.check_origin(resources, capture.setting.user, "evict", name)
    if request.all:
        is_own = rights.sight(resources)
        found = {capture.id: capture for capture in home.names.captures() if is_own(capture.setting.user)}
        standings = home.names.standings(list(found))
        chosen = [found[ident] for ident, one in standings.items() if one.durable and not one.removed]
    durable = home.names.standings([capture.id for capture in chosen])
    await check_whole(home, [capture for capture in chosen if durable[capture.id].durable])
    await asyncio.to_thread(home.names.sync)  # what leads to an image is to last longer than what it is needed for
    evicted, kept = [], []
    for capture in chosen:
        if not home.names.standing(capture.id).durable:
            kept.append(f"{capture.id[:12]}: it is not in the store")
        elif await asyncio.to_thread(evict_one, home, capture):
            evicted.append(capture.id)
        else:
            point = home.captures.shown().get(capture.id)
            kept.append(f"{capture.id[:12]}: {f'it is mounted at {point}' if point else 'it is in use'}")
    return EvictedFacts(evicted=evicted, kept=kept)


def evict_one(home: Home, capture: Capture) -> bool:
    """As `Captures.evict`. Blocks."""
    tips = [home.names.ref(row.branch) for row in home.names.live()]
    return home.captures.evict(capture, is_tip=any(tip is not None and tip.capture == capture.id for tip in tips))


async def check_whole(home: Home, captures: list[Capture]) -> None:
    """Raise StoreDamaged unless the store has all that these captures consist of. All of it is read: what is there is
    about to be the only copy.
    """
    if wrong := (await _looked_at(home, captures, reads=True))[1]:
        raise StoreDamaged("evict", "what is in the store", wrong[0], "see the rest: 'waypoint verify --read-data'")


async def whole_of(home: Home, captures: list[Capture]) -> list[Capture]:
    """Those of the captures of which the store has all. What was written is not read. Raises StoreDamaged if a pack is
    not whole.
    """
    whole, wrong = await _looked_at(home, captures)
    if wrong and not whole:
        raise StoreDamaged("evict", "what is in the store", wrong[0], "see the rest: 'waypoint verify --read-data'")
    for said in wrong:
        log.warning("a capture that the store has not whole is not evicted: %s", said)
    return whole


async def _looked_at(home: Home, captures: list[Capture], *, reads: bool = False) -> tuple[list[Capture], list[str]]:
    """Those of the captures that the store has whole, none if a pack is not; and in words, what is wrong."""
    standings = home.names.standings([capture.id for capture in captures])
    images = sorted({standing.image for standing in standings.values() if standing.image})
    if not images:
        return captures, []
    order = Verify(store=store_of(home), images=images, read_data=False, only=True, read_images=reads)
    found = await carry_out(home, order, Verified)
    lacking = {*found.missing, *found.lacking}
    whole = [] if found.problems else [one for one in captures if standings[one.id].image not in lacking]
    return whole, [*_wrong_images(home, found), *found.problems]


async def verify(home: Home, request: VerifyRequest) -> VerifiedFacts:
    """Look for damage in the store. `request.read_data`: read every byte of it. Raises StateConflict, Failed,
    StoreDamaged if it is gone.
    """
    if is_missing(home, store_of(home)):
        return VerifiedFacts(images=0, objects=0, problems=[], unknown=[])
    order = Verify(store=store_of(home), images=home.names.images(), read_data=request.read_data)
    found = await home.jobs.result(home.jobs.start("verify", lambda job: carry_out(home, order, Verified, job)))
    assert isinstance(found, Verified)
    problems = [*_wrong_images(home, found), *found.gone, *found.problems]
    unknown = [one.id for one in home.present_strangers() if one.kind == "image"]
    remedy = _remedy(home, found) if problems else ""
    return VerifiedFacts(images=found.images, objects=found.objects, problems=problems, unknown=unknown, remedy=remedy)


def _remedy(home: Home, found: Verified) -> str:
    """What to do about what was found: files that are gone can be put back; what is damaged, or was in files that are
    not known any more, is put again by who still has it.
    """
    put_back = put_back_or_give_up(home, {*found.lacking, *found.missing})
    if found.gone or found.missing:
        return put_back
    return (
        f"have it put again by the next checkpoint with the same content: waypoint checkpoint NEW --wait; or {put_back}"
    )


async def damage_of(home: Home, standing: Standing) -> str:
    """In words, what is wrong with the capture's image, if there is an object in the store that could not be read when
    that was tried last; "" if there is none, or it cannot be looked at.
    """
    image = standing.image
    if image is None or not await asyncio.to_thread(os.path.exists, StoreFolder(store_of(home)).damaged):
        return ""
    with contextlib.suppress(WaypointError):  # such as a key that is away
        order = Verify(store=store_of(home), images=[image], read_data=False, only=True)
        return (await carry_out(home, order, Verified)).lacking.get(image, "")
    return ""


def _wrong_images(home: Home, found: Verified) -> list[str]:
    """In words, each image that is not whole, with the names that stand for it. One that no capture is any more, since
    a gc has come between, is none.
    """
    needed = set(home.names.images())
    wrong = {image: "it is not there" for image in found.missing if image in needed} | found.lacking
    captures = home.names.captures_of_images(sorted(wrong))
    names: dict[str, list[str]] = {}
    for name, ref in sorted(home.names.refs().items()):
        if ref.capture:
            names.setdefault(ref.capture, []).append(name)
    shown = {image: ", ".join(names.get(captures.get(image, ""), ["no name"])) for image in wrong}
    return [f"image {image[:16]} ({shown[image]}): {said}" for image, said in wrong.items()]


async def compact(home: Home, *, patient: bool, strangers: Collection[str] = ()) -> Compacting:
    """Remove from the store the images of captures that are removed, those of `strangers`, and what no image needs; all
    other images that names.db does not know stay. `patient`: wait for what is being put. Raises WaypointError,
    StateConflict if not to wait, StoreDamaged if images cannot be read.
    """
    if is_missing(home, store_of(home)):
        return Compacting(images=0)
    while patient and await others_end(home):
        pass
    done = await home.jobs.result(home.jobs.start("store", lambda job: _compact(home, strangers), is_unasked=True))
    assert isinstance(done, Compacting)
    if done.damaged:
        raise await asyncio.to_thread(_unreadable, home, done.damaged)
    return done


def _unreadable(home: Home, damaged: dict[str, str]) -> StoreDamaged:
    """The error for images that cannot be read, with how to give them up."""
    image, why = next(iter(damaged.items()))
    more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
    said = f"the image {image[:12]} cannot be read{more}, so what it needs is not known: {why}"
    return StoreDamaged("compact", "the store", said, put_back_or_give_up(home, damaged))


async def others_end(home: Home) -> bool:
    """Wait for the work on the store that is under way. Returns whether there was any.

    Only one such job runs at a time: an image that is put is on record when the job ends, and what is on record when
    one begins is all that a compaction has to keep.
    """
    running = home.jobs.running("store")
    if running is not None:
        with contextlib.suppress(WaypointError, OSError):  # its own error, and no reason to do nothing here
            await home.jobs.result(running)
    return running is not None


async def _compact(home: Home, strangers: Collection[str]) -> Compacting:
    await asyncio.to_thread(home.names.sync)  # or a power loss would put back on record what is gone
    unknown = {one.id for one in home.present_strangers() if one.kind == "image"}
    keep = sorted({*home.names.images(), *(unknown - {*strangers})})
    return await carry_out(home, Compact(store=store_of(home), keep=keep), Compacting)


async def put_job(home: Home, job: Job, capture_id: str) -> list[str]:
    """The work of a job that puts a capture into the store, after all that it goes on from, but for those of which
    something is missing, damaged or cannot be read, or that have what no store takes. Returns the new images.
    """
    made = []
    lacking = _lacking(home, capture_id)
    job.report(items=0, items_total=len(lacking))
    for number, capture in enumerate(lacking, 1):
        try:
            made.append(await _put_one(home, job, capture))
        except (StoreDamaged, CannotCapture, UnknownName, Failed) as error:
            if capture.id == capture_id or _is_of_all(error):
                raise
            log.warning("the capture %s stays out of the store: %s", capture.id[:12], error)
        job.report(items=number, items_total=len(lacking))
    return made


def _is_of_all(error: WaypointError) -> bool:
    """Whether what has kept one capture out of the store keeps out any other, too: that it is full, or in use."""
    return isinstance(error, Failed) and any(said in error.said for said in _OF_ALL)


def _lacking(home: Home, capture_id: str) -> list[Capture]:
    """The captures that are not in the store, of this one and those that it goes on from; the oldest first. Those that
    may be torn are left out: the store would pass them off as whole.
    """
    lacking: list[Capture] = []
    waiting = [capture_id]
    while waiting:
        capture = home.names.capture(waiting.pop())
        standing = home.names.standing(capture.id)
        if standing.durable or standing.removed or home.captures.torn.may_be(capture.id):
            continue
        lacking.append(capture)
        waiting += capture.parents
    return lacking[::-1]


def _twin(home: Home, capture: Capture) -> str:
    """The image of a parent that has the very same processes (something was attached to it); "" if there is none."""
    same = (capture.clock, capture.machine, capture.layers.processes)
    for parent in home.names.captures_of(capture.parents, may_lack=True).values():
        if capture.layers.processes and (parent.clock, parent.machine, parent.layers.processes) == same:
            return home.names.standing(parent.id).image or ""
    return ""


def _note_alike(alike: dict[str, str], branch: str, image: str) -> None:
    """Keep the image that was put last of each of the few branches of which one was."""
    alike.pop(branch, None)
    alike[branch] = image
    while len(alike) > _MOST_ALIKE:
        del alike[next(iter(alike))]


async def _put_one(home: Home, job: Job, capture: Capture) -> str:
    parents = [image for parent in capture.parents if (image := home.names.standing(parent).image)]
    async with contextlib.AsyncExitStack() as held:
        (mine,) = await held.enter_async_context(holding(home.captures, capture))
        before = None
        with contextlib.suppress(UnknownName):  # it has been removed meanwhile, so all is read
            for parent in capture.parents if parents else ():
                if not home.names.standing(parent).removed:
                    there = holding(home.captures, home.names.capture(parent), recalls=False)
                    (before,) = await held.enter_async_context(there)
        # Not the parent, which may be of another machine.
        alike, most = list(home.captures.alike.values())[::-1], home.config.base_files_bytes
        hidden = await asyncio.to_thread(homes.hidden_from, capture.setting.user)
        base = OfBase(twin=_twin(home, capture), alike=alike, most_bytes=most, hidden=hidden)
        order = Ingest(store=store_of(home), source=mine.source(parents, before, base))
        done = await carry_out(home, order, Ingested, job, is_urgent=not job.is_unasked)
    if capture.tier == "live" and not base.twin:  # whose files of the base may be another machine's
        _note_alike(home.captures.alike, capture.branch, done.image)
    with home.names.change("store") as change:
        standing = change.standing(capture.id)
        standing = Standing(image=done.image, durable=True, removed=standing.removed, parts=done.parts)
        change.set_standing(capture.id, standing)
    await asyncio.to_thread(keep_record, home)
    return done.image
