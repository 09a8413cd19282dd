"""Pinned bases: the files below sessions, kept in the home, so that they do not change when the machine does.

A base is a capture whose upper tree has all files, and whose image has nothing that depends on time, place or name. So
equal files have an equal image everywhere; the capture's id is the beginning of the image's id, and a session's setting
names it (`records.base_of`).
"""

import os
import stat
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from waypoint.capture.layers.layer import Area
from waypoint.capture.storing.base_records import base_id, capture_of, record_base
from waypoint.capture.storing.images import Images, OnProgress, base_order
from waypoint.capture.storing.orders import Ingested
from waypoint.linux.storage import filesystem
from waypoint.linux.storage.deep import walk
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks.stages import stage
from waypoint.model.ids import new_id
from waypoint.model.records import BaseRef, Capture
from waypoint.model.stages import Stage
from waypoint.records.names import Names
from waypoint.upper import layout
from waypoint.upper.contract import refusals

VERB = "base create"
_OF_OVERLAYS = "trusted.overlay."

Fill = Callable[[Path], None]
"""Fills an empty folder with the files of a base. Raises WaypointError, OSError, CalledProcessError."""


class Created(NamedTuple):
    """`devices`: how many device nodes were left out. `new_bytes`: by how much the store has grown."""

    capture: Capture
    image: str
    devices: int
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
                fill(upper)
                devices = _clean(upper)
                for folder in (upper.parent, upper.parent.parent):
                    folder.chmod(0o755)
                    os.utime(folder, ns=(0, 0))  # the image has the times
            order = base_order(self._images.store, capture_of(tree), pool.path(tree))
            with storing:
                made = self._images.workers.run(order, Ingested, on_progress)
                capture = self._snapshot(tree, made.image)
                with self._names.change(VERB) as change:
                    record_base(change, capture, made.image)
                    change.put_base(name, BaseRef(capture=capture.id, source=source, created=time.time()))
                    change.note = f"{name} is {capture.id[:12]}"
        finally:
            pool.remove(tree)
        return Created(capture, made.image, devices, made.new_bytes)

    def _snapshot(self, tree: str, image: str) -> Capture:
        """Make the tree that the image's capture has, unless the base exists already."""
        capture = capture_of(base_id(image))
        with self._images.only_one(capture.id):
            if not self._images.is_hot(capture):
                with self._names.change(VERB) as change:
                    change.add_disposable(capture.id)
                self._area.pool.snapshot(tree, capture.id, sealed=True)
        self._readmit(capture.id)
        return capture


def copy_folder(source: str, target: Path) -> None:
    """Copy a folder of the machine, without what is mounted in it."""
    filesystem.copy_tree(source, target, one_file_system=True)


def _clean(upper: Path) -> int:
    """Remove device nodes, which no session could open, and the marks of an overlay, which would hide files. Returns
    the number of devices.
    """
    devices = 0
    with open_folder(str(upper.parent)) as above:
        for visit in walk(above, upper.name):
            before = os.fstat(visit.fd)
            for name in visit.others:
                mode = os.stat(name, dir_fd=visit.fd, follow_symlinks=False).st_mode
                if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                    os.unlink(name, dir_fd=visit.fd)
                    devices += 1
            for mark in os.listxattr(visit.fd):
                if mark.startswith(_OF_OVERLAYS):
                    os.removexattr(visit.fd, mark)
            os.utime(visit.fd, ns=(before.st_atime_ns, before.st_mtime_ns))
    return devices
