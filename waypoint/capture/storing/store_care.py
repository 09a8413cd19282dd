"""Looking after the store: what images take, whether something is damaged, and removing what no image needs."""

import contextlib
from collections.abc import Collection, Iterable, Iterator

from waypoint.capture.storing.image_manifest import manifest_in, roots_of
from waypoint.capture.storing.orders import (
    Compact,
    Compacting,
    LookedOver,
    LookOver,
    Verified,
    Verify,
    Weigh,
    Weighed,
)
from waypoint.model.errors import StoreDamaged, WaypointError
from waypoint.store.content.checking import check_packs, check_sizes, read_doubted
from waypoint.store.content.compaction import compact
from waypoint.store.content.object_reader import ObjectReader
from waypoint.store.content.opened import Store
from waypoint.store.packs.digests import address_of
from waypoint.store.trees.reachable import reachable


def weigh(store: Store, order: Weigh) -> Weighed:
    """Raises UnknownName, StoreDamaged."""
    with store.reading() as reader:
        sizes = {
            image: sum(
                reader.stored_size(digest) for _, digest in reachable(reader, roots_of(manifest_in(store, image)))
            )
            for image in order.images
        }
    return Weighed(sizes=sizes)


def verify(store: Store, order: Verify) -> Verified:
    """Whether every image that is there, or must be, has all that it consists of; what is doubted is read; and with
    `read_data` whether every byte of the store is the one that was written. An image that is removed meanwhile is no
    problem. What is found again is noted no more as damaged or vanished.
    """
    there = set(store.images.list())
    looked_at = there & set(order.images) if order.only else there
    problems = list(check_packs(store, read_data=order.read_data))
    if not (order.only or order.read_data):
        read_doubted(store)
    objects, lacking, seen = 0, {}, set[bytes]()
    with store.reading() as reader:
        vanished = reader.index.vanished
        for image in sorted(looked_at):
            found = list(_wrong_with(store, reader, image, seen if order.read_images else None))
            wrong = [said for said in found if said]
            objects += len(found) - len(wrong)
            if wrong and image in store.images.list():
                lacking[image] = f"{wrong[0]}{f', and {len(wrong) - 1} more' if wrong[1:] else ''}"
    missing = [image for image in order.images if image not in there]
    gone = [] if order.only else _gone(store, vanished, lacks=bool(lacking or missing))
    return Verified(
        images=len(looked_at), objects=objects, problems=problems, lacking=lacking, missing=missing, gone=gone
    )


def look_over(store: Store, order: LookOver) -> LookedOver:
    """Reads nothing of what was written, unless a pack has vanished: what tells whether an image needs it is read then.
    Raises Failed.
    """
    there, problems = store.images.list(), list(check_sizes(store))
    lacking = len(set(order.images) - set(there))
    with store.reading() as reader:
        vanished = reader.index.vanished
        lacks = bool(vanished) and any(said for image in there for said in _wrong_with(store, reader, image, None))
    missing = [f"{lacking} of {len(order.images)} images are not there"] if lacking else []
    return LookedOver(problems=[*problems, *_gone(store, vanished, lacks=lacks or bool(lacking)), *missing])


def _gone(store: Store, vanished: Collection[str], *, lacks: bool) -> list[str]:
    """In words, the packs that have vanished. If no image lacks anything (`lacks`), nobody needs them: none are told,
    and they are not waited for any more.
    """
    if lacks:
        return [f"{store.folder.pack(name)}: it is not there" for name in sorted(vanished)]
    with contextlib.suppress(WaypointError), store.told("forget a pack of"):  # a full disk: the next one does it
        index = store.index()
        for name in vanished:
            index.removed(name)
    return []


def _wrong_with(store: Store, reader: ObjectReader, image: str, seen: set[bytes] | None) -> Iterator[str]:
    """For each object of the image what is wrong with it, in words; "" for one that is there. `seen`: read what is not
    among these addresses, and add it; None: read none.
    """
    try:
        for kind, digest in reachable(reader, roots_of(manifest_in(store, image))):
            if reader.has(digest) and (seen is None or _can_be_read(store, reader, digest, seen)):
                yield ""
            else:
                is_there = reader.stored_size(digest) > 0
                yield f"a {kind.name.lower()} of it is {'damaged' if is_there else 'not there'}: {digest.hex()[:16]}"
    except WaypointError as error:
        yield error.said


def _can_be_read(store: Store, reader: ObjectReader, digest: bytes, seen: set[bytes]) -> bool:
    address = address_of(digest, store.keys.hash)
    if address not in seen:
        try:
            reader.check(address)
        except (StoreDamaged, OSError):
            return False
        seen.add(address)
    return True


def remove_all_but(store: Store, order: Compact) -> Compacting:
    """Raises WaypointError."""
    gone = sorted(set(store.images.list()) - set(order.keep))
    with store.writing("remove images from"):
        for image in gone:
            store.images.remove(image)
    kept = store.images.list()
    with store.reading() as reader:
        try:
            live = set(_needed(store, reader, kept))
        except StoreDamaged:
            return Compacting(images=len(gone), damaged=_damaged(store, reader, kept))
    done = compact(store, live)
    return Compacting(images=len(gone), freed_bytes=done.freed_bytes, waiting_bytes=done.waiting_bytes)


def _needed(store: Store, reader: ObjectReader, images: Iterable[str]) -> Iterator[bytes]:
    """The addresses of all objects of these images. Raises StoreDamaged for the first that cannot be read."""
    roots = [root for image in images for root in roots_of(manifest_in(store, image))]
    for _, digest in reachable(reader, roots):
        yield address_of(digest, store.keys.hash)


def _damaged(store: Store, reader: ObjectReader, images: Iterable[str]) -> dict[str, str]:
    """Why each image cannot be read that cannot."""
    found = {}
    for image in images:
        try:
            for _ in _needed(store, reader, [image]):
                pass
        except StoreDamaged as error:
            found[image] = error.said
    return found
