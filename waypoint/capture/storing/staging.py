"""Where a capture is brought back to from the store: an upper tree, and a folder in the hot area."""

from waypoint.capture.layers import staged
from waypoint.capture.layers.layer import Area
from waypoint.capture.steps import StoreStep, reach
from waypoint.capture.storing.orders import Recall
from waypoint.linux.storage.deep import remove_path
from waypoint.model.ids import new_id
from waypoint.model.records import Capture


class Staging:
    """Where a capture is brought to, until all of it is there. `tree`: the name of its tree, which no capture has."""

    def __init__(self, area: Area, capture: Capture) -> None:
        self._area = area
        self._capture = capture
        self.tree = new_id()
        self._hot = staged.place(area.hot, self.tree)

    def order(self, store: str, image: str) -> Recall:
        """Make the places, and say what is to be brought there. Raises Failed, OSError; then `remove`."""
        processes = self._capture.layers.processes
        ids = processes.ids if processes is not None else None
        return Recall(store=store, image=image, tree=self._area.pool.create(self.tree), hot=str(self._hot), ids=ids)

    def publish(self) -> None:
        """All is there: let the capture have it. The tree goes first and comes last: without it the capture is not
        there. Raises Failed, OSError; then `remove`.
        """
        reach(StoreStep.BROUGHT)
        pool, ident, tree = self._area.pool, self._capture.id, self._capture.layers.files.tree
        pool.remove(tree)
        if self._hot.is_dir():
            self._area.hot.remove(ident)  # a part of it may be there
            self._hot.rename(self._area.hot.folder / ident)
            self._area.hot.touch(ident)  # by its time, what it has may be torn if the machine goes down now (torn.py)
        reach(StoreStep.HOT_IN_PLACE)
        pool.snapshot(self.tree, tree, sealed=True)
        if pool.driver == "copy":  # of btrfs, a snapshot is durable
            pool.sync(tree)

    def remove(self) -> None:
        """Remove what is still here. Raises Failed, OSError."""
        remove_path(self._hot)
        self._area.pool.remove(self.tree)
