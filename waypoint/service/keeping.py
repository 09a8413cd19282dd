"""What a home keeps without being asked: for how long, and how much."""

import time
from typing import NamedTuple

from waypoint.branch import removal
from waypoint.records.reading import Reader


class Keeping(NamedTuple):
    """The settings of a home (config.json), or of one `gc`.

    `operations_s`: operations of this many last seconds can be undone. `policy`: which captures without a name are kept
    besides. `hot_bytes`: what captures may take outside of the store before stored ones are evicted. `undo_bytes`: what
    captures may take that only undo needs.
    """

    operations_s: float
    policy: removal.Policy
    hot_bytes: int
    undo_bytes: int

    def since(self) -> float:
        """The moment from which on operations are kept, in seconds since the epoch."""
        return time.time() - self.operations_s

    def survey(self, names: Reader) -> removal.Survey:
        """What could be removed now."""
        return removal.survey(names, self.since(), self.policy)
