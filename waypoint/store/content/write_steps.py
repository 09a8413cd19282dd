"""The steps of writing to a store, by name: places where a test lets the writer die, or the disk be full.

Each step has an order to what comes after it: a pack is whole on disk before it has its name, and every object that an
image consists of is durable before the image has its own.
"""

from collections.abc import Callable
from enum import StrEnum


class WriteStep(StrEnum):
    """What has just been done."""

    PACK_WRITTEN = "pack-written"
    PACK_IN_PLACE = "pack-in-place"
    INDEXED = "indexed"
    PACKS_DURABLE = "packs-durable"
    IMAGE_WRITTEN = "image-written"
    IMAGE_IN_PLACE = "image-in-place"
    IMAGE_DURABLE = "image-durable"
    COPIED = "copied"
    RETIRED = "retired"
    REMOVED = "removed"


listener: Callable[[WriteStep], None] | None = None
"""Set by tests alone."""


def reached(step: WriteStep) -> None:
    """Tell the listener, if there is one."""
    if listener is not None:
        listener(step)
