"""Removes from a home what a crash has left and names.db does not know; keeps and reports strangers.

store/marks.py defines left-overs. A stranger may be all that a user has: its names.db was moved away, lost, or replaced
by an older copy. It stays in its place, and is known again when its database is put back.
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
    """The things of one kind in a home, by ids of captures or sessions. `place`: the folder with the mark of the
    database. `known`: the ids on record. `ids`: lists the ids that exist.
    """

    kind: Literal["processes", "files", "capture", "session"]
    place: Path
    known: Collection[str]
    ids: Callable[[], Iterable[str]]
    path: Callable[[str], str]
    remove: Callable[[str], None]

    def unknown(self) -> list[str]:
        return sorted(ident for ident in self.ids() if ident not in self.known)


def sweep(names: Names, inventories: Iterable[Inventory]) -> list[StrangerFacts]:
    """Remove the left-overs, and mark the places as those of `names`. Returns the strangers.

    To be called before anything is made in the home. A left-over that cannot be removed is logged and becomes a
    stranger. If the disk is full, the places keep their old marks, and the next daemon sweeps again.
    """
    inventories = list(inventories)
    strangers = [stranger for inventory in inventories for stranger in _sweep_one(names, inventory)]
    if strangers:
        said = "%d things in this home are unknown to its names.db, and are kept; the first: %s"
        log.warning(said, len(strangers), strangers[0].path)
    try:
        # In this order: ids that are disposable in a folder of another database must not be so once the folder is ours.
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
    try:
        inventory.remove(ident)
    except (WaypointError, OSError) as error:
        log.error("cannot remove the left-over %s: %s", inventory.path(ident), error)
        return False
    return True
