"""What lies in a home and is on no record of names.db: left-overs of a crash are removed, strangers are kept.

store/marks.py says what is a left-over. Everything else may be all that somebody has: its names.db was moved away,
was lost, or was replaced by an older copy. It stays as and where it is; when the database that knows it is put back, it
is known again.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from waypoint.model.errors import Failed, WaypointError
from waypoint.model.facts import StrangerFacts
from waypoint.store.marks import has_mark, put_mark
from waypoint.store.names import Names

log = logging.getLogger(__name__)


class Inventory(NamedTuple):
    """Where things of one kind lie under the ids of captures or sessions.

    `place`: the folder that bears the mark of the database. `known`: the ids that are on record. `ids`: lists the ids
    of what is there. `path`: where the thing with an id lies. `remove`: removes it.
    """

    kind: Literal["processes", "files", "capture", "session"]
    place: Path
    known: Collection[str]
    ids: Callable[[], Iterable[str]]
    path: Callable[[str], str]
    remove: Callable[[str], None]

    def unknown(self) -> list[str]:
        """The ids of the things that are there and on no record, sorted."""
        return sorted(ident for ident in self.ids() if ident not in self.known)


def sweep(names: Names, inventories: Iterable[Inventory]) -> list[StrangerFacts]:
    """Remove the left-overs from the inventories, and mark their places as those of `names`. Returns the strangers.

    To be called before anything is made in the home. A left-over that cannot be removed is logged, and is a stranger
    from then on. If the disk is full, places keep their old marks, and the next daemon does the same again.
    """
    inventories = list(inventories)
    strangers = [stranger for inventory in inventories for stranger in _sweep_one(names, inventory)]
    if strangers:
        said = "%d things in this home are unknown to its names.db, and are kept; the first: %s"
        log.warning(said, len(strangers), strangers[0].path)
    try:
        # In this order: an id that is disposable in a folder of another database must not be when the folder is ours.
        with names.change("sweep") as change:
            identity = change.begin_sweep()
        for place in {inventory.place for inventory in inventories}:
            put_mark(place, identity)
    except (Failed, OSError) as error:
        log.warning("cannot mark the places of names.db: %s", error)
    return strangers


def _sweep_one(names: Names, inventory: Inventory) -> list[StrangerFacts]:
    disposable = names.disposable() if has_mark(inventory.place, names.identity()) else set()
    strangers = []
    for ident in inventory.unknown():
        if ident not in disposable or not _remove(inventory, ident):
            strangers.append(StrangerFacts(kind=inventory.kind, id=ident, path=inventory.path(ident)))
    return strangers


def _remove(inventory: Inventory, ident: str) -> bool:
    """Remove a left-over. Returns whether that has worked."""
    try:
        inventory.remove(ident)
    except (WaypointError, OSError) as error:
        log.error("cannot remove the left-over %s: %s", inventory.path(ident), error)
        return False
    return True
