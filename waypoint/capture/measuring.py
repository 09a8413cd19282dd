"""What captures have on disk."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from waypoint.capture.layers.layer import Area
from waypoint.capture.layers.table import LAYERS
from waypoint.capture.torn import Torn
from waypoint.model.details.kept_in import KeptIn
from waypoint.model.errors import WaypointError
from waypoint.model.records import Capture, Standing
from waypoint.store.reading import RecordReader
from waypoint.upper.contract import Shares


class Usage(NamedTuple):
    """`files`: of the files. `hot_bytes`: of all else (processes, terminal), which is shared with nobody, and may be in
    memory yet.
    """

    files: Shares
    hot_bytes: int


class Whereabouts(NamedTuple):
    """Where the content of captures was at one moment. `here`: names of trees in the pool. `hot`: ids of captures with
    something in the hot area. `memory`: of those whose images are in memory. `is_known`: False if one of these cannot
    be told: history is told all the same, when a disk fails, too.
    """

    here: frozenset[str]
    hot: frozenset[str]
    memory: frozenset[str]
    torn: Torn
    is_known: bool = True

    def of(self, capture: Capture, standing: Standing) -> KeptIn | None:
        """Looks at no file."""
        if standing.removed or not self.is_known:
            return None
        has_all = capture.layers.files.tree in self.here and (capture.tier != "live" or capture.id in self.hot)
        if standing.durable:
            return "store" if has_all else "store alone"
        if self.torn.may_be(capture.id):
            return "torn"
        return "memory" if capture.id in self.memory else "disk"

    def of_all(self, names: RecordReader, captures: Mapping[str, Capture]) -> dict[str, KeptIn | None]:
        """By the keys of the captures. Reads names.db."""
        standings = names.standings([capture.id for capture in captures.values()])
        return {key: self.of(capture, standings[capture.id]) for key, capture in captures.items()}


class Measures:
    """Measures the captures of one home. All methods block."""

    def __init__(self, area: Area, torn: Torn) -> None:
        self._area = area
        self._torn = torn

    def sizes(self, capture: Capture) -> dict[str, int | None]:
        """Bytes on disk by kind of layer, None for a layer that the capture does not have. Walks over all files."""
        return {layer.kind: layer.size(self._area, capture) for layer in LAYERS}

    def whereabouts(self) -> Whereabouts:
        """Of all captures. Lists two folders. Does not raise."""
        hot, nothing = self._area.hot, frozenset[str]()
        try:
            here, there = frozenset(self._area.pool.list()), frozenset(os.listdir(hot.folder))
        except (OSError, WaypointError):
            return Whereabouts(nothing, nothing, nothing, self._torn, is_known=False)
        return Whereabouts(here, there, frozenset(hot.in_memory.list()), self._torn)

    def usage(self, capture: Capture) -> Usage:
        """What the capture has on disk. Walks over all its files. Raises Failed, UnknownName if it has been removed."""
        files = self._area.pool.shares(capture.layers.files.tree)
        return Usage(files, self.hot_bytes_of(capture.id))

    def hot_bytes(self) -> tuple[int, int]:
        """What all captures have on disk besides their files, and the logs of dumps and restores that failed."""
        return self._area.hot.used_bytes(), self._area.hot.logs_bytes()

    def note_use(self, capture_id: str) -> None:
        """The capture is brought back to a session now. Takes some microseconds."""
        self._area.hot.touch(capture_id)

    def memory_bytes(self, capture_id: str = "") -> int:
        """What one capture has in memory until it comes to the disk; "": what all have."""
        return self._area.hot.in_memory.used_bytes(capture_id)

    def hot_bytes_of(self, capture_id: str = "") -> int:
        """What one capture has besides its files, on disk or in memory yet; "": what all have."""
        return self._area.hot.used_bytes(capture_id) + self.memory_bytes(capture_id)

    def written(self) -> dict[str, float]:
        """When each capture that has something on disk besides its files was last made or used, in seconds since the
        epoch, by its id.
        """
        with os.scandir(self._area.hot.folder) as entries:
            return {entry.name: entry.stat().st_mtime for entry in entries if not entry.name.startswith(".")}

    def coldest(self) -> list[str]:
        """The ids of the captures that have something on disk besides their files; which was not used for the longest
        time comes first (`note_use`).
        """
        written = self.written()
        return sorted(written, key=written.__getitem__)
