"""The layer `files`: a sealed copy of the session's upper tree, and of the files in its /dev/shm, which are in memory.

The copy of the tree is named after the capture. For a session that has ended, the session's own tree is sealed instead
and keeps its name.
"""

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import Future

from waypoint.capture.layers.layer import Area, Layer, LayerRecord, Part, Place, Taking
from waypoint.capture.steps import Step, reach
from waypoint.linux.snapshots import file_stamps
from waypoint.linux.storage import beneath, filesystem, idmapped
from waypoint.linux.storage.deep import walk
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import procfs
from waypoint.model.errors import Failed, StoreDamaged, UnknownName
from waypoint.model.paths import SHARED_MEMORY
from waypoint.model.records import Capture, FilesLayer

_PAGE = 4096


class FilesPart(Part):
    """Writes dirty data to disk while the session still runs, so that the snapshot in the pause has little to write."""

    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._prepared: Future[None] | None = None
        self._sealed: Future[None] | None = None
        self._has_memory = False
        self._written_out_ns = 0

    def prepare(self) -> None:
        self._prepared = self.taking.beside.submit(self._write_out)

    def ready(self) -> None:
        assert self._prepared is not None
        self._prepared.result()

    def begin(self) -> None:
        self._sealed = self.taking.beside.submit(self._seal)

    def finish(self) -> None:
        assert self._sealed is not None
        self._sealed.result()
        if self.taking.files_changed:
            self.taking.area.pool.remove(self.taking.capture_id)
            self._snapshot()
        if self._has_memory or self.taking.files_changed:
            self._look_at_memory(self._copy_from)
        reach(Step.SEALED)

    def record(self) -> FilesLayer:
        return FilesLayer(tree=self.taking.capture_id)

    def cancel(self) -> None:
        for begun in (self._prepared, self._sealed):
            if begun is not None:
                begun.exception()  # waits for its end; `Layer.drop` removes its files, so its result does not matter

    def _write_out(self) -> None:
        if self.taking.asked is not None:
            self.taking.asked.exception()  # what the shell writes is to be written out, too
        self._written_out_ns = file_stamps.writing_out_begins_ns()
        self.taking.area.pool.sync(self.taking.subject.facts.tree)
        reach(Step.PREPARED)

    def _snapshot(self) -> None:
        pool, tree = self.taking.area.pool, self.taking.subject.facts.tree
        pool.snapshot(tree, self.taking.capture_id, sealed=True)
        if pool.driver == "copy" and file_stamps.are_told(pool.folder):  # copies have stamps of their own
            file_stamps.note(pool.path(self.taking.capture_id), of=pool.path(tree), trusted_ns=self._written_out_ns)

    def _seal(self) -> None:
        self._snapshot()
        self._look_at_memory(self._look_into)

    def _look_at_memory(self, look: Callable[[int], None]) -> None:
        facts = self.taking.subject.facts
        try:
            with procfs.opened_mount(facts.init_pid, SHARED_MEMORY, "tmpfs") as source:
                look(source)
        except OSError as error:
            if error.errno != beneath.MISPLACED:
                raise
            said = f"{SHARED_MEMORY}: its files are not in the capture: {error.strerror}"
            self.taking.degraded += [] if said in self.taking.degraded else [said]

    def _look_into(self, source: int) -> None:
        """Find out beside CRIU whether the mount has files; mostly it has none."""
        self._has_memory = bool(os.listdir(beneath.name_of(source)))

    def _copy_from(self, source: int) -> None:
        """Copy the files of the mount behind `source`, if it has any."""
        if not os.listdir(beneath.name_of(source)):
            return
        ids = self.taking.subject.facts.fixed.ids
        target = self.taking.area.hot.memory(self.taking.capture_id)
        target.mkdir(mode=0o700)
        userns = idmapped.namespace(ids.lines()) if ids.is_shifted else None
        with idmapped.opened(target, userns) as copy:
            try:
                filesystem.copy_tree_within(userns, source, copy)
            except subprocess.CalledProcessError as error:  # the disk is full; a path is too long for `cp`
                said = os.fsdecode(error.stderr or b"").strip()[-200:] or str(error)
                next_step = f"make room, or remove from {SHARED_MEMORY} what cannot be copied, and try again"
                raise Failed("copy the files of", SHARED_MEMORY, said, next_step) from error


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

    def memory_bytes(self, area: Area, origin: Capture) -> int:
        """How much the files of /dev/shm take of a tmpfs, or a little less. Looks at each file."""
        folder = self.memory(area, origin)
        if not folder:
            return 0
        above, name = os.path.split(folder)
        with open_folder(above) as fd:
            return sum(
                _tmpfs_bytes(os.stat(other, dir_fd=visit.fd, follow_symlinks=False))
                for visit in walk(fd, name)
                for other in visit.others
            )

    def path(self, area: Area, origin: Capture) -> str:
        """The folder of the sealed tree (upper/layout.py says what lies in it). Nobody may write to it."""
        return area.pool.path(origin.layers.files.tree)

    def size(self, area: Area, capture: Capture) -> int:
        """Bytes on disk. Walks over all files of the tree."""
        return area.pool.usage(capture.layers.files.tree)

    def drop(self, area: Area, capture_id: str, record: LayerRecord | None) -> None:
        area.pool.remove(record.tree if isinstance(record, FilesLayer) else capture_id)


def _tmpfs_bytes(facts: os.stat_result) -> int:
    """How many bytes of a tmpfs the file takes, or a little less: whole pages. For a file with holes the disk's blocks
    less a page, since they include the block map.
    """
    whole, on_disk = -facts.st_size // _PAGE * -_PAGE, facts.st_blocks * 512
    return whole if on_disk >= whole else max(0, on_disk - _PAGE)


def damaged(origin: Capture, said: str) -> StoreDamaged:
    """The error for a capture of which a part is missing on disk, or damaged. `said`: which part, in words."""
    next_step = "go back to another capture ('waypoint log --all' lists them)"
    return StoreDamaged("go back to", f"capture {origin.id[:12]}", said, next_step)


FILES = Files()


def keep_stamps(area: Area, tip: Capture | None) -> None:
    """Keep the stamps of the files of what a session goes on from, if that is about to go: by them the next capture
    knows what has changed since. Copies, in a pool without snapshots, have theirs.
    """
    if tip is not None and area.pool.driver == "btrfs":
        file_stamps.note(FILES.path(area, tip))
