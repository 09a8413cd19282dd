"""Requests about the store of images: looking for damage, and removing the copies outside of it."""

import asyncio
import logging
from collections.abc import Iterator

from waypoint.capture.storing.orders import Damage
from waypoint.linux.tasks.stages import stage
from waypoint.model.errors import StateConflict, StoreDamaged, WaypointError, one_line
from waypoint.model.facts import DamageFacts, EvictedFacts, EvictFacts, VerifyFacts
from waypoint.model.records import Capture
from waypoint.model.requests import EvictRequest, UnlockRequest, VerifyRequest
from waypoint.model.stages import Stage
from waypoint.service.home import Home
from waypoint.service.usage import home_bytes, stored_bytes
from waypoint.session.birth import rights

_STORE = "the store of images"

log = logging.getLogger(__name__)


async def verify(home: Home, request: VerifyRequest) -> VerifyFacts:
    """Look for damage in the store. Captures whose images are damaged are stored again, where that is possible."""
    rights.check_unrestricted(home.sessions.resources, "verify", _STORE, "it has the captures of all users")
    return await asyncio.to_thread(_verify, home, request.read_data)


def _verify(home: Home, read_data: bool) -> VerifyFacts:  # noqa: FBT001
    images, captures = home.captures.images, dict[str, list[str]]()
    with stage(Stage.VERIFY, total=stored_bytes(home), unit="bytes") as under_way:
        found = images.verify(under_way.report, read_data=read_data) if images.store.exists() else []
    with home.storing.lock:  # no gc removes an image meanwhile
        stored = home.names.images()
        for capture_id, image in stored.items():
            captures.setdefault(image, []).append(capture_id)
        missing = [image for image in captures if not (images.store / "images" / image).exists()]
        found += [Damage(f"image {image[:12]}: its manifest is missing", [image]) for image in missing]
        bad = {image for one in found for image in one.images}
        home.storing.note({capture_id: image not in bad for capture_id, image in stored.items()})
    again = home.names.captures_of([one for one, image in stored.items() if image in bad], may_lack=True).values()
    damage = [
        DamageFacts(
            said=one.said, names=[name for image in one.images for name in _names(home, captures.get(image, []))]
        )
        for one in found
    ]
    return VerifyFacts(
        read_data=read_data,
        images=len(captures),
        damage=damage,
        stored_again=[name for one in again if images.is_hot(one) for name in _names(home, [one.id])],
    )


def _names(home: Home, captures: list[str]) -> Iterator[str]:
    for capture_id, names in home.names.names_with_bases(captures).items():
        yield from names or [capture_id]


async def unlock(home: Home, request: UnlockRequest) -> None:
    """Unlock the store of an encrypted home, until the daemon ends, and store what waits for that. Raises
    StateConflict if the passphrase is wrong.
    """
    rights.check_unrestricted(home.sessions.resources, "unlock", _STORE, "it has the captures of all users")
    await asyncio.to_thread(home.captures.images.keys.unlock, request.passphrase)
    home.storing.retry()


async def evict(home: Home, request: EvictRequest) -> EvictFacts:
    """Remove the copies of captures outside of the store, after storing those that are not stored. A restore extracts
    them again. With names, raises StateConflict if one is in use, or the error why it cannot be stored.
    """
    resources, wanted = home.sessions.resources, dict[str, Capture]()
    if request.names is None:
        rights.check_unrestricted(resources, "evict", "all captures", "some are other users'")
        refs = {name: ref for name, ref in home.names.refs().items() if ref.capture}
        by_id = {capture.id: name for name, capture in home.names.tips_of(refs).items()}
        wanted = {by_id[capture.id]: capture for capture in home.names.tips_of(refs).values()}
    for name in request.names or ():
        rights.check_name(resources, name, "evict")
        wanted[name] = await asyncio.to_thread(home.names.resolve, name)
        rights.check_origin(resources, wanted[name].setting.user, "evict", name)
    before = await asyncio.to_thread(home_bytes, home)
    evicted, kept = list[EvictedFacts](), list[str]()
    for name, capture in wanted.items():
        try:
            if await _evict_one(home, name, capture):
                evicted.append(EvictedFacts(name=name, capture=capture.id))
        except WaypointError as error:
            if request.names is not None:
                raise
            kept.append(f"{name}: {error.said}")
    await asyncio.to_thread(home.pool.settle)
    after = await asyncio.to_thread(home_bytes, home)
    return EvictFacts(evicted=evicted, kept=kept, freed_bytes=max(0, before - after))


async def _evict_one(home: Home, name: str, capture: Capture) -> bool:
    """Returns False if there is no copy outside of the store. If its image is damaged, the capture is stored again."""
    images = home.captures.images
    if not images.is_hot(capture):
        return False
    await home.storing.wait(capture)
    try:
        with stage(Stage.EVICT):
            is_evicted = await asyncio.to_thread(home.captures.evict, capture)
    except StoreDamaged as error:
        log.warning("%s; it is stored again", one_line(str(error)))
        await asyncio.to_thread(home.storing.note, {capture.id: False})
        await home.storing.wait(capture)
        is_evicted = await asyncio.to_thread(home.captures.evict, capture)
    if is_evicted:
        return True
    if images.is_hot(capture):
        next_step = "try again when no session is being started from it"
        raise StateConflict("evict", rights.describe_name(home.names, name), "it is being read", next_step)
    return False
