"""What lies in a home and is on no record of names.db: left-overs of a crash are removed, strangers are kept.

store/belonging.py says what is a left-over. Everything else may be all that somebody has: its names.db was moved away,
was lost, or was replaced by an older copy. It stays as and where it is; when the database that knows it is put back, it
is known again.
"""

import functools
import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from waypoint.capture.layers import staged
from waypoint.capture.layers.hot import Hot
from waypoint.model.errors import Failed, WaypointError
from waypoint.model.facts import StrangerFacts
from waypoint.model.facts.stranger_facts import StrangerKind
from waypoint.store.belonging import belongs, mark, unmark
from waypoint.store.names import Names

log = logging.getLogger(__name__)


class Shelf(NamedTuple):
    """Where things of one kind lie under the ids of captures or sessions.

    `place`: the folder that bears the mark of the database. `known`: the ids that are on record. `ids`: lists the ids
    of what is there. `path`: where the thing with an id lies. `remove`: removes it. `dooms`: what may go is doomed; if
    not, others remove the left-overs, which are all that is unknown, and the place has the mark only while it has no
    stranger (store/belonging.py).
    """

    kind: StrangerKind
    place: Path
    known: Collection[str]
    ids: Callable[[], Iterable[str]]
    path: Callable[[str], str]
    remove: Callable[[str], None]
    dooms: bool = True

    def unknown(self) -> list[str]:
        """The ids of the things that are there and on no record, sorted."""
        return sorted(ident for ident in self.ids() if ident not in self.known)

    def stranger(self, ident: str) -> StrangerFacts:
        return StrangerFacts(kind=self.kind, id=ident, path=self.path(ident))


def staged_shelf(hot: Hot) -> Shelf:
    """Where things are made that are no captures yet: all of it is a left-over of a crash when a daemon begins."""
    return Shelf(
        "capture",
        hot.folder,
        (),
        functools.partial(staged.unfinished, hot),
        lambda ident: str(staged.place(hot, ident)),
        functools.partial(staged.remove, hot),
    )


def sweep(names: Names, shelves: Iterable[Shelf]) -> list[StrangerFacts]:
    """Remove the left-overs from the shelves, and mark their places as those of `names`. Returns the strangers.

    To be called before anything is made in the home. A left-over that cannot be removed is logged, and is a stranger
    from then on. If the disk is full, places keep their old marks, and the next daemon does the same again.
    """
    shelves = list(shelves)
    strangers = [stranger for shelf in shelves for stranger in _sweep_one(names, shelf)]
    with_strangers = {stranger.kind for stranger in strangers}
    if strangers:
        said = "%d things in this home are unknown to its names.db, and are kept; the first: %s"
        log.warning(said, len(strangers), strangers[0].path)
    try:
        # In this order: an id that was doomed in a place of another database must be spared when the place is ours.
        with names.change("sweep") as change:
            change.open_anew()
        mixed = {shelf.place for shelf in shelves if not shelf.dooms and shelf.kind in with_strangers}
        for place in {shelf.place for shelf in shelves} - mixed:
            mark(place, names)
    except (Failed, OSError) as error:
        log.warning("cannot mark the places of names.db: %s", error)
    return strangers


def _sweep_one(names: Names, shelf: Shelf) -> list[StrangerFacts]:
    is_ours = belongs(shelf.place, names)
    doomed = names.doomed() if is_ours and shelf.dooms else set()
    if not shelf.dooms:
        if is_ours:
            return []
        try:
            unmark(shelf.place)  # at once: what this daemon makes there is unknown to the database whose mark it was
        except OSError as error:
            log.warning("cannot take the mark of another names.db away: %s", error)
    return [shelf.stranger(one) for one in shelf.unknown() if one not in doomed or not _remove(shelf, one)]


def _remove(shelf: Shelf, ident: str) -> bool:
    """Remove a left-over. Returns whether that has worked."""
    try:
        shelf.remove(ident)
    except (WaypointError, OSError) as error:
        log.error("cannot remove the left-over %s: %s", shelf.path(ident), error)
        return False
    return True
