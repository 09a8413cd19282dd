"""The sweep of a home: it removes the left-overs of a crash, and keeps and reports strangers.

A *stranger* is a thing (a capture, a tree, a session) that names.db does not know and that is no left-over;
records/marks.py defines left-overs. A stranger may be the only copy of a user's data, if names.db was moved away, lost
or replaced by an older copy. So it stays in its place, and is known again when its database is put back.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from waypoint.model.errors import Failed, WaypointError
from waypoint.model.session_facts import StrangerFacts
from waypoint.records.marks import has_mark, put_mark
from waypoint.records.names import Names

log = logging.getLogger(__name__)


class Inventory(NamedTuple):
    """All things of one `kind` in a home, such as the upper trees of captures. Each has the id of its capture or
    session. `place`: the folder with the mark of its names.db (records/marks.py). `known`: the ids in names.db. `ids`:
    lists the ids found on the machine. `path`: returns the path of the thing with this id. `remove`: removes it.
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
    """Remove the left-overs, and mark the inventories' places as belonging to `names`. Return the strangers.

    Call it before anything is made in the home. A left-over that cannot be removed is logged and reported as a
    stranger. If the disk is full, the places keep their old marks, and the next daemon sweeps again.
    """
    inventories = list(inventories)
    strangers = [stranger for inventory in inventories for stranger in _sweep_one(names, inventory)]
    if strangers:
        said = "%d things in this home are unknown to its names.db, and are kept; the first: %s"
        log.warning(said, len(strangers), strangers[0].path)
    try:
        # `begin_sweep` must come before the marks: ids that were disposable while a folder belonged to another database
        # must not be disposable after this database has marked the folder.
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
