"""What a home has besides captures and sessions, for the sweep: images in its store, and journals of what was put onto
the machine. Captures that were evicted, and what an apply has replaced, are nowhere else.
"""

import os
from collections.abc import Callable
from pathlib import Path

from waypoint.capture.sweeping import Shelf
from waypoint.model.ids import is_image_id
from waypoint.store.content.home_key import STORE
from waypoint.store.names import Names

JOURNALS = "applied"
"""The folder with the journals of applies."""


def shelves_beside(home: Path, names: Names) -> list[Shelf]:
    """Both have the mark of the home itself. What they list is looked for when it is asked for."""
    images, journals = f"{home}/{STORE}/images", f"{home}/{JOURNALS}"

    def unknown_images() -> set[str]:
        if not os.path.isdir(images):
            return set()
        return {one for one in os.listdir(images) if is_image_id(one)} - {*names.images(also_removed=True)}

    def unknown_journals() -> list[str]:
        return _unknown_journals(names, journals) if os.path.isdir(journals) else []

    return [
        Shelf("image", home, (), unknown_images, lambda it: f"{images}/{it}", _of_the_store, dooms=False),
        Shelf("journal", home, (), unknown_journals, lambda it: f"{journals}/{it}", _remover(journals), dooms=False),
    ]


def _of_the_store(image: str) -> None:
    raise AssertionError(f"the image {image} may only go in a job that has the store for itself: keeping.compact")


def _remover(journals: str) -> Callable[[str], None]:
    def remove(ident: str) -> None:
        from waypoint.branch.applying.journal import Journal

        Journal(journals, ident).remove()

    return remove


def _unknown_journals(names: Names, folder: str) -> list[str]:
    """The journals that keep something of the machine for a change that no entry of the log tells of. Those of a change
    that was broken off are seen to (applying.recover).
    """
    from waypoint.branch.applying.journal import journals_in  # most homes need not load it

    journals = [one for one in journals_in(folder) if one.has("settled") and not one.has("void")]
    known = recorded(names) if journals else set()
    return [one.ident for one in journals if one.ident not in known]


def recorded(names: Names) -> set[str]:
    """The journals that are in the operation log."""
    return {one.applied.journal for piece in names.iter_operations() for one in piece if one.applied is not None}
