"""Pinned bases: the files below sessions, kept in the home, so that they do not change when the machine does.

A base is a capture whose upper tree has all files, and whose image has nothing that depends on time, place or name. So
equal files have an equal image everywhere; the capture's id is the beginning of the image's id, and a session's setting
names it (`records.base_of`).
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from waypoint.capture.layers.layer import Area
from waypoint.capture.storing.base_records import base_id, capture_of, record_base
from waypoint.capture.storing.images import Images, OnProgress, base_order
from waypoint.capture.storing.orders import Gather, Gathered, Ingested, Unpack, Unpacked
from waypoint.linux.tasks.stages import stage
from waypoint.model.conditions import Degradation, degradation
from waypoint.model.ids import new_id
from waypoint.model.records import BaseRef, Capture, ImageConfig, User
from waypoint.model.stages import Stage
from waypoint.records.names import Names
from waypoint.upper import layout
from waypoint.upper.contract import refusals

VERB = "base create"


class Filled(NamedTuple):
    """`left_out`: what the folder lacks of the source. `image`: of a container image."""

    left_out: list[Degradation]
    image: ImageConfig | None = None


Fill = Callable[[Path], Filled]
"""Fills an empty folder with the files of a base, without devices. Raises WaypointError, OSError."""


class Created(NamedTuple):
    """`left_out`: what the base lacks of its source. `new_bytes`: by how much the store has grown."""

    capture: Capture
    image: str
    left_out: list[Degradation]
    new_bytes: int


class Bases:
    """All methods block."""

    def __init__(
        self,
        images: Images,
        area: Area,
        names: Names,
        writing: Callable[[], AbstractContextManager[object]],
        readmit: Callable[[str], None],
    ) -> None:
        self._images = images
        self._area = area
        self._names = names
        self._writing = writing
        self._readmit = readmit

    def create(
        self, name: str, source: str, fill: Fill, storing: AbstractContextManager[object], on_progress: OnProgress
    ) -> Created:
        """Make a base of the files that `fill` provides, and give it the name `name`, which may have meant another one.
        `source`: in words. `storing`: no image is removed during its `with` block.
        """
        pool = self._area.pool
        pool.check_writable()
        tree = new_id()
        with self._names.change(VERB) as change:
            change.add_disposable(tree)
        try:
            upper = Path(layout.upper_of(pool.create(tree)))
            with self._writing(), stage(Stage.COPY_FILES), refusals("create", f"base {name}"):
                upper.mkdir(parents=True)
                filled = fill(upper)
                for folder in (upper.parent, upper.parent.parent):
                    folder.chmod(0o755)
                    os.utime(folder, ns=(0, 0))  # the image has the times
            order = base_order(self._images.store, capture_of(tree, filled.image), pool.path(tree))
            with storing:
                made = self._images.workers.run(order, Ingested, on_progress)
                capture = self._snapshot(tree, made.image, filled.image)
                with self._names.change(VERB) as change:
                    record_base(change, capture, made.image)
                    change.put_base(name, BaseRef(capture=capture.id, source=source, created=time.time()))
                    change.note = f"{name} is {capture.id[:12]}"
        finally:
            pool.remove(tree)
        return Created(capture, made.image, filled.left_out, made.new_bytes)

    def gather(
        self,
        folders: list[tuple[str, str]],
        target: Path,
        on_progress: OnProgress,
        hidden: Sequence[str] = (),
        emptied: Sequence[str] = (),
    ) -> Filled:
        """Copy folders of the machine to `target`, as the order Gather says."""
        order = Gather(
            store=str(self._images.store),
            folders=folders,
            target=str(target),
            hidden=list(hidden),
            emptied=list(emptied),
        )
        found = self._images.workers.run(order, Gathered, on_progress)
        left_out = [degradation("devices-left-out", found.device, str(found.devices))] if found.devices else []
        if found.left_out:
            left_out.append(degradation("files-left-out", found.example, str(found.left_out)))
        return Filled(left_out)

    def unpack(self, path: str, user: User, target: Path, on_progress: OnProgress) -> Filled:
        """Unpack a container image to `target`, as the order Unpack says."""
        order = Unpack(store=str(self._images.store), path=path, user=user, target=str(target))
        with stage(Stage.UNPACK, unit="bytes") as under_way:

            def report(done: int) -> None:
                under_way.report(done)
                on_progress(done)

            found = self._images.workers.run(order, Unpacked, report)
        return Filled(found.left_out, found.config)

    def _snapshot(self, tree: str, image: str, config: ImageConfig | None) -> Capture:
        """Make the tree that the image's capture has, unless the base exists already."""
        capture = capture_of(base_id(image), config)
        with self._images.only_one(capture.id):
            if not self._images.is_hot(capture):
                with self._names.change(VERB) as change:
                    change.add_disposable(capture.id)
                self._area.pool.snapshot(tree, capture.id, sealed=True)
        self._readmit(capture.id)
        return capture
