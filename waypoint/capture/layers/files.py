"""The layer `files`: a sealed copy of the session's upper tree, and of the files in its /dev/shm.

The copy of the tree is named after the capture. Of an ended session the tree itself is sealed, and keeps its name.
"""

import os
import subprocess
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from waypoint.capture.layers.layer import Area, Layer, Part, StoredFolder, Taking
from waypoint.capture.steps import Step, reach
from waypoint.linux.storage import beneath, filesystem, idmapped
from waypoint.linux.storage.deep import walk
from waypoint.linux.storage.descriptors import open_folder
from waypoint.linux.tasks import procfs
from waypoint.model.conditions import degradation
from waypoint.model.errors import CannotCapture, Failed, StoreDamaged, UnknownName
from waypoint.model.paths import SHARED_MEMORY
from waypoint.model.records import Capture, FilesLayer

_PAGE = 4096
_COPY_S, _COPY_BYTES_S, _COPY_FILES_S = 10.0, 20e6, 500.0


class FilesPart(Part):
    """Writes dirty data to disk while the session still runs, so that the snapshot in the pause has little to write."""

    def __init__(self, taking: Taking) -> None:
        super().__init__(taking)
        self._prepared: Future[None] | None = None
        self._sealed: Future[None] | None = None

    def prepare(self) -> None:
        self._prepared = self.taking.executor.submit(self._write_out)

    def ready(self) -> None:
        assert self._prepared is not None
        self._prepared.result()

    def begin(self) -> None:
        self._sealed = self.taking.executor.submit(self._seal)

    def finish(self) -> None:
        assert self._sealed is not None
        self._sealed.result()
        if self.taking.files_changed:
            self.taking.area.hot.remove_memory(self.taking.capture_id)
            self.taking.area.pool.remove(self.taking.capture_id)
            self._seal()
        reach(Step.SEALED)

    def record(self) -> FilesLayer:
        return FilesLayer(tree=self.taking.capture_id)

    def cancel(self) -> None:
        for begun in (self._prepared, self._sealed):
            if begun is not None:
                begun.exception()  # waits for its end; `Layer.drop` removes the files

    def _write_out(self) -> None:
        if self.taking.asking is not None:
            self.taking.asking.exception()  # waits until the shell has written its state, which is dirty data, too
        self.taking.area.pool.sync(self.taking.subject.facts.tree)
        reach(Step.PREPARED)

    def _seal(self) -> None:
        self.taking.area.pool.snapshot(self.taking.subject.facts.tree, self.taking.capture_id, sealed=True)
        self._copy_memory()

    def _copy_memory(self) -> None:
        facts = self.taking.subject.facts
        try:
            with procfs.opened_mount(facts.init_pid, SHARED_MEMORY, "tmpfs") as source:
                self._copy_from(source)
        except OSError as error:
            if error.errno != beneath.MISPLACED:
                raise
            self.taking.degraded.append(degradation("no-shared-memory", SHARED_MEMORY, error.strerror or ""))

    def _copy_from(self, source: int) -> None:
        if not os.listdir(beneath.name_of(source)):
            return
        ids = self.taking.subject.facts.fixed.ids
        target = self.taking.area.hot.make_memory(self.taking.capture_id)
        userns = idmapped.namespace(ids.lines()) if ids.is_shifted else None
        with idmapped.opened(target, userns) as copy:
            try:
                filesystem.copy_tree_within(userns, source, copy, _limit_s(source))
            except subprocess.TimeoutExpired as error:
                said = f"they could not be copied in {error.timeout:.0f} s"
                next_step = "end the program that holds them back (a lease of fcntl), and try again"
                raise Failed("copy the files of", SHARED_MEMORY, said, next_step, code="capture-too-slow") from error
            except subprocess.CalledProcessError as error:  # the disk is full; a path is too long for `cp`
                said = os.fsdecode(error.stderr or b"").strip()[-200:] or str(error)
                next_step = (
                    f"free some disk space, or remove from {SHARED_MEMORY} the "
                    "files that cannot be copied, and try again"
                )
                raise Failed("copy the files of", SHARED_MEMORY, said, next_step) from error


def _limit_s(memory: int) -> float:
    """How long the copy of a tmpfs may take while the session is frozen: several times as long as on a slow disk."""
    size_bytes, files = filesystem.used_now(beneath.name_of(memory))
    return _COPY_S + size_bytes / _COPY_BYTES_S + files / _COPY_FILES_S


class Files(Layer):
    kind = "files"

    def part(self, taking: Taking) -> FilesPart:
        return FilesPart(taking)

    def restore_tree(self, area: Area, origin: Capture, tree: str) -> None:
        """Make `tree` a writable copy of the origin's tree, without /dev/shm (see `memory`). Raises StoreDamaged if the
        origin's tree is missing.
        """
        try:
            area.pool.snapshot(origin.tree, tree)
        except UnknownName as error:
            raise damaged(origin, "its files are missing from the pool") from error

    def memory(self, area: Area, origin: Capture) -> str:
        folder = area.hot.memory(origin.id)
        return str(folder.resolve()) if folder.is_dir() else ""

    def memory_bytes(self, area: Area, origin: Capture) -> int:
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
        return area.pool.path(origin.tree)

    def folders(self, area: Area, origin: Capture, kind: str) -> dict[str, StoredFolder]:
        return {
            "tree": StoredFolder(Path(self.path(area, origin)), "session"),
            "memory": StoredFolder(area.hot.memory(origin.id), "user"),
        }

    def facts(self, record: dict[str, Any]) -> dict[str, Any]:
        return {"tree": record["tree"]}

    def size(self, area: Area, record: dict[str, Any]) -> int:
        return area.pool.usage(record["tree"])

    def drop(self, area: Area, capture_id: str, record: dict[str, Any] | None) -> None:
        area.pool.remove(record["tree"] if record else capture_id)


def _tmpfs_bytes(facts: os.stat_result) -> int:
    """A lower bound of the size on a tmpfs: whole pages. For a sparse file the disk's blocks less the block map."""
    whole, on_disk = -facts.st_size // _PAGE * -_PAGE, facts.st_blocks * 512
    return whole if on_disk >= whole else max(0, on_disk - _PAGE)


def images_lost(tried: str, origin: Capture) -> CannotCapture:
    """The error for a capture whose images were in memory when the machine stopped (hot.py)."""
    said = "they were in memory, and not yet on the disk, when the machine stopped"
    return CannotCapture(tried, origin.id[:12], said, "restore an earlier checkpoint", code="images-lost")


def damaged(origin: Capture, said: str) -> StoreDamaged:
    next_step = "choose another capture ('waypoint log --all' lists them)"
    return StoreDamaged("restore", f"capture {origin.id[:12]}", said, next_step)


FILES = Files()
