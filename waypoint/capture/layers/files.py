"""The layer `files`: a sealed copy of the session's upper tree, and of the files in its /dev/shm, which are in memory.

The copy of the tree is named after the capture. For a session that has ended, the session's own tree is sealed instead
and keeps its name.
"""

import os
from concurrent.futures import Future

from waypoint.capture.layers.layer import Area, Layer, LayerRecord, Part, Place, Taking
from waypoint.capture.steps import Step, reach
from waypoint.linux.storage import filesystem
from waypoint.linux.tasks import procfs
from waypoint.model.errors import StoreDamaged, UnknownName
from waypoint.model.paths import SHARED_MEMORY
from waypoint.model.records import Capture, FilesLayer


class FilesPart(Part):
    """Writes dirty data to disk while the session still runs, so that the snapshot in the pause has little to write."""

    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._prepared: Future[None] | None = None
        self._sealed: Future[None] | None = None

    def prepare(self) -> None:
        self._prepared = self.taking.beside.submit(self._write_out)

    def ready(self) -> None:
        assert self._prepared is not None
        self._prepared.result()

    def begin(self) -> None:
        self._sealed = self.taking.beside.submit(self._snapshot)

    def finish(self) -> None:
        assert self._sealed is not None
        self._sealed.result()
        if self.taking.files_changed:
            self.taking.area.pool.remove(self.taking.capture_id)
            self._snapshot()
        self._copy_memory()
        reach(Step.SEALED)

    def record(self) -> FilesLayer:
        return FilesLayer(tree=self.taking.capture_id)

    def cancel(self) -> None:
        for begun in (self._prepared, self._sealed):
            if begun is not None:
                begun.exception()  # waits for its end; `Layer.drop` removes its files, so its result does not matter

    def _write_out(self) -> None:
        self.taking.area.pool.sync(self.taking.subject.facts.tree)
        reach(Step.PREPARED)

    def _snapshot(self) -> None:
        self.taking.area.pool.snapshot(self.taking.subject.facts.tree, self.taking.capture_id, sealed=True)

    def _copy_memory(self) -> None:
        source = f"{procfs.root_path(self.taking.subject.facts.init_pid)}{SHARED_MEMORY}"
        if os.listdir(source):
            filesystem.copy_tree(source, self.taking.area.hot.memory(self.taking.capture_id))


class Files(Layer):
    kind = "files"

    def part(self, taking: Taking) -> FilesPart:
        return FilesPart(taking)

    def bring_back(self, area: Area, origin: Capture, place: Place) -> None:
        """Make the tree `place.tree` a writable copy of the origin's tree. Does not bring back /dev/shm: see `memory`.

        Raises StoreDamaged if the origin's tree is not in the pool, Failed.
        """
        try:
            area.pool.snapshot(origin.layers.files.tree, place.tree)
        except UnknownName as error:
            raise damaged(origin, "its files are not in the pool any more") from error

    def memory(self, area: Area, origin: Capture) -> str:
        """The path of the folder with the files of /dev/shm; "" if there were none."""
        folder = area.hot.memory(origin.id)
        return str(folder) if folder.is_dir() else ""

    def path(self, area: Area, origin: Capture) -> str:
        """The folder of the sealed tree (upper/layout.py says what lies in it). Nobody may write to it."""
        return area.pool.path(origin.layers.files.tree)

    def size(self, area: Area, capture: Capture) -> int:
        """Bytes on disk. Walks over all files of the tree."""
        return area.pool.usage(capture.layers.files.tree)

    def drop(self, area: Area, capture_id: str, record: LayerRecord | None) -> None:
        area.pool.remove(record.tree if isinstance(record, FilesLayer) else capture_id)


def damaged(origin: Capture, said: str) -> StoreDamaged:
    """The error for a capture of which a part is missing on disk, or damaged. `said`: which part, in words."""
    next_step = "go back to another capture ('waypoint log --all' lists them)"
    return StoreDamaged("go back to", f"capture {origin.id[:12]}", said, next_step)


FILES = Files()
