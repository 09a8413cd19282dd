"""The layer `attached`: files and folders that users have attached to a capture, one of each kind.

All of it is on disk before the session stands still: whoever takes the capture gets it `Staged`. Its part in the
capture is a new name for one folder, after the pause.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from waypoint.capture.layers import hot
from waypoint.capture.layers.layer import Area, Layer, Part, Taking
from waypoint.model.details.attached_records import AttachedLayer
from waypoint.model.records import Capture, Layers

CONTENT = "content"
"""The file or folder in the folder of its kind."""


def place(area: Area, capture_id: str) -> Path:
    """The folder of all that is attached to a capture; there is none if nothing is."""
    return area.hot.folder / capture_id / hot.ATTACHED


def told_left_out(layers: Mapping[str, AttachedLayer]) -> list[str]:
    """In words, what was left out of what was attached."""
    return [f"attached as {kind} without {said}" for kind, layer in layers.items() for said in layer.left_out]


class AttachedPart(Part):
    """Takes over what is staged. It is last in the table, so that no layer can fail after it."""

    def record(self) -> dict[str, AttachedLayer] | None:
        staged, area = self.taking.attached, self.taking.area
        if staged is None or not staged.layers:
            return None
        os.rename(staged.folder, place(area, self.taking.capture_id))
        self.taking.degraded += told_left_out(staged.layers)
        return dict(staged.layers)


class Attached(Layer):
    kind = "attached"

    def part(self, taking: Taking) -> AttachedPart:
        return AttachedPart(taking)

    def of(self, capture: Capture) -> dict[str, AttachedLayer]:
        """What is attached to the capture, by kind."""
        return self.of_layers(capture.layers)

    def of_layers(self, layers: Layers) -> dict[str, AttachedLayer]:
        """As `of`."""
        return {} if layers.attached is msgspec.UNSET else layers.attached

    def place(self, area: Area, capture_id: str, kind: str) -> Path:
        """The folder of this kind; CONTENT is in it."""
        return place(area, capture_id) / kind

    def size(self, area: Area, capture: Capture) -> int | None:
        found = self.of(capture)
        return sum(layer.size_bytes for layer in found.values()) if found else None


ATTACHED = Attached()
