"""Images of the store as one file."""

from collections.abc import Callable

from waypoint.capture.steps import StoreStep, reach
from waypoint.capture.storing.image_manifest import read_manifest, roots_of
from waypoint.capture.storing.orders import Export, Sent
from waypoint.linux.storage.files import write_all
from waypoint.store.content.opened import Store
from waypoint.store.exports.export_writing import Consignment, size_of, write_export
from waypoint.store.exports.signatures import private_key


def export(store: Store, order: Export, told: Callable[[int], None]) -> Sent:
    """`told`: about how many bytes it will have, before the first of them is written.

    Raises UnknownName, StoreDamaged, Failed, UsageProblem (the key, or more than anybody could import), OSError (nobody
    reads any more).
    """
    images = [store.images.read(ident) for ident in order.images]
    found = [read_manifest(ident, one.manifest) for ident, one in zip(order.images, images, strict=True)]
    consignment = Consignment(
        name=order.name,
        images=images,
        roots=[root for manifest in found for root in roots_of(manifest)],
        absent=order.absent,
        key=private_key(order.key.encode()) if order.key else None,
        passphrase=order.passphrase.encode(),
    )
    told(size_of(store, consignment))

    def send(content: bytes) -> None:
        write_all(order.fd, content)
        reach(StoreStep.SENT_ONE)

    objects, size = write_export(store, consignment, send)
    return Sent(objects=objects, size_bytes=size)
