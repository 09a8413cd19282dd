"""What holds the space of a home, for people who wonder why it is not freed."""

import logging

from waypoint.branch.removal import Survey
from waypoint.model.errors import WaypointError, one_line
from waypoint.model.facts import HeldBy, HeldFacts
from waypoint.service.home import Home

log = logging.getLogger(__name__)


def held(home: Home, found: Survey) -> list[HeldFacts]:
    """What holds the space of the home. What several captures share in the store counts once: for a name before the
    policy, and for the policy before undo. Blocks.
    """
    sizes, images = home.captures.copy_sizes(), home.names.images()
    groups: dict[HeldBy, list[str]] = {"names": [], "policy": [], "undo": []}
    for one in found.kept.keys() - found.removed:
        why = found.kept[one]
        groups["names" if why & {"name", "base"} else "undo" if why == {"undo"} else "policy"].append(one)
    order = [one for group in groups.values() for one in sorted(group) if one in images]
    try:
        stored = dict(zip(order, home.captures.images.sizes([images[one] for one in order]), strict=True))
    except WaypointError as error:  # the store is locked, or damaged
        log.warning("the store of images cannot be measured: %s", one_line(str(error)))
        stored = None
    facts = [
        HeldFacts(
            by=by,
            captures=len(group),
            copies_bytes=sum(sizes.get(one, 0) for one in group),
            stored_bytes=None if stored is None else sum(stored.get(one, 0) for one in group),
        )
        for by, group in groups.items()
    ]
    return [*facts, HeldFacts(by="files", captures=0, copies_bytes=home.pool.unique_bytes(), stored_bytes=0)]
