"""Where attached layers lie: those of captures, and those that come in."""

import time
from pathlib import Path

import msgspec

from waypoint.capture.layers import staged
from waypoint.capture.layers.attached import ATTACHED, CONTENT, place, told_left_out
from waypoint.capture.layers.layer import Area, Staged
from waypoint.capture.steps import StoreStep, reach
from waypoint.linux.calls import programs
from waypoint.linux.storage.deep import remove_path
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, FilesLayer
from waypoint.store.names import Names
from waypoint.upper.contract import refusals


class AttachedPlaces:
    """Of one home. The calls block."""

    def __init__(self, area: Area, names: Names) -> None:
        self._area = area
        self._names = names

    @property
    def floor_bytes(self) -> int:
        """How much of the disk what comes in leaves free."""
        return self._area.floor_bytes()

    def begin(self) -> Path:
        """Make a folder for layers that come in. A crash leaves nothing of it: the next daemon removes it. Raises
        Failed.
        """
        ident = new_id()
        with self._names.change("attach") as change:
            change.doom(ident)
        folder = staged.place(self._area.hot, ident)
        with refusals("attach layers in", str(self._area.hot.folder)):
            folder.mkdir(mode=0o700)
        return folder

    def remove(self, folder: Path) -> None:
        """Remove what is still there of `begin`'s. Raises OSError."""
        staged.remove(self._area.hot, folder.name[1:])

    def add_to(self, origin: Capture, staged_layers: Staged) -> Capture:
        """Make a new capture with all that `origin` has, which is held, and with what is staged, in place of layers of
        the same kinds. The two share content, and each can go without the other. The new one is on no record yet: the
        caller records it, or calls `Captures.drop`. Raises WaypointError; then nothing of it is left.
        """
        ident = new_id()
        with self._names.change("attach") as change:
            change.doom(ident)
        with refusals("attach to", f"the capture {origin.id[:12]}"):
            self._make(ident, origin, staged_layers)
        layers = msgspec.structs.replace(
            origin.layers,
            files=FilesLayer(tree=ident),
            attached={**ATTACHED.of(origin), **staged_layers.layers},
        )
        replaced = {kind: one for kind, one in ATTACHED.of(origin).items() if kind in staged_layers.layers}
        earlier = told_left_out(replaced)
        degraded = [said for said in origin.degraded if said not in earlier]
        degraded += told_left_out(staged_layers.layers)
        made = msgspec.structs.replace(origin, id=ident, parents=[origin.id], created=time.time(), layers=layers)
        return msgspec.structs.replace(made, degraded=degraded)

    def _make(self, ident: str, origin: Capture, staged_layers: Staged) -> None:
        """Put all of the capture `ident` on the disk. Raises WaypointError, OSError, CalledProcessError."""
        area = self._area
        try:
            area.pool.snapshot(origin.layers.files.tree, ident, sealed=True)
            _share_hot(area.hot.folder / origin.id, area.hot.folder / ident)
            reach(StoreStep.SHARED)
            # What is in memory has no other names: it is copied.
            area.hot.settling.copy_out(ident, lambda: None, of=origin.id)
            here = place(area, ident)
            here.mkdir(mode=0o700, exist_ok=True)
            for kind in staged_layers.layers:
                remove_path(here / kind)
                (staged_layers.folder / kind).rename(here / kind)
        except BaseException:
            area.pool.remove(ident)
            area.hot.remove(ident)
            raise

    def folder(self, capture_id: str, kind: str) -> Path:
        """That of the layer of this kind, in which its content is."""
        return ATTACHED.place(self._area, capture_id, kind)

    def content(self, capture_id: str, kind: str) -> Path:
        """The file or folder that was attached."""
        return self.folder(capture_id, kind) / CONTENT


def _share_hot(source: Path, target: Path) -> None:
    """Make the hot folder `target` with the files of `source`, which no capture ever changes, by other names."""
    if not source.is_dir():  # of a session that had ended
        target.mkdir(mode=0o700)
        return
    programs.run("cp", "-a", "--link", "--", source, target)
