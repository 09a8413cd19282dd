"""Named steps of the write order. A test can end the process at each of them."""

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    PACK_WRITTEN = "pack-written"  # the pack is complete and on disk, without its name
    PACK_NAMED = "pack-named"  # the pack has its name, which is not yet durable
    INDEXED = "indexed"  # the index leads to the objects of the pack
    PACKS_DURABLE = "packs-durable"  # every object of the image survives a power loss
    IMAGE_WRITTEN = "image-written"  # the manifest is durable: the image exists
    COPIED = "copied"  # gc: the objects to keep are in a new pack, the old one is still there
    REPLACED = "replaced"  # gc: the index does not lead to the old packs any more


class _Observer:
    call: Callable[[Step], None] | None = None


_observer = _Observer()


def observe(call: Callable[[Step], None] | None) -> None:
    """Call `call` at each step, for tests."""
    _observer.call = call


def reached(step: Step) -> None:
    if _observer.call is not None:
        _observer.call(step)
