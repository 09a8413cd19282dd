"""The captures of a home as images in its store: storing them, extracting them, and removing their hot copies.

A capture is *hot* if its files are on disk outside of the store. Its upper tree is made last and removed first, so a
capture whose tree exists is hot as a whole.
"""

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from waypoint.capture.layers import base_files
from waypoint.capture.layers.files import images_lost
from waypoint.capture.layers.layer import Area, StoredFolder
from waypoint.capture.layers.table import layer_of
from waypoint.capture.storing.keys import Keys
from waypoint.capture.storing.orders import (
    Check,
    Collect,
    Damage,
    Freed,
    Ingest,
    Ingested,
    Measure,
    ReadImage,
    Recall,
    StoredPart,
    Verify,
)
from waypoint.capture.storing.workers import Workers
from waypoint.linux.storage import filesystem
from waypoint.linux.storage.deep import remove_path
from waypoint.linux.tasks.stages import stage
from waypoint.model.errors import Failed, StoreDamaged, WaypointError
from waypoint.model.ids import new_id
from waypoint.model.records import Capture, FilesLayer, Machine
from waypoint.model.stages import Stage
from waypoint.records.names import Names
from waypoint.upper.contract import NEXT_STEPS, mib

_MAX_JSON_INT = (1 << 53) - 1
# Fields of the records of layers that are measured, or that name something on this machine.
_LEFT_OUT = {"files": ("tree",), "processes": ("frozen_us",)}


_ANCESTORS = 1000

OnProgress = Callable[[int], None]
Writing = Callable[[], AbstractContextManager[object]]
"""Makes the pool grow in time while the `with` block writes to it."""


class Images:
    """The store of a home. All methods block and are thread-safe."""

    def __init__(self, store: Path, area: Area, names: Names, writing: Writing) -> None:
        self.store = store
        self.workers = Workers(lambda: self.keys.get())
        self.keys = Keys(store, lambda order: self.workers.run(order, str))
        self._area = area
        self._names = names
        self._writing = writing
        self._lock = threading.Lock()
        self._moving: dict[str, threading.Lock] = {}  # by capture, while it is being extracted or evicted

    def is_hot(self, capture: Capture) -> bool:
        return os.path.isdir(self._area.pool.path(capture.tree))

    def is_lost(self, capture: Capture) -> bool:
        """Whether the copy outside of the store was partly in memory when the machine stopped."""
        return self._area.hot.is_lost(capture.id)

    def ingest(self, capture: Capture, on_progress: Callable[[int, int | None], None]) -> Ingested:
        """Store a capture that is held. The image is durable on return. `on_progress`: as for `Captures.ingest`.

        If it has an image, which is damaged, everything is read, and damaged objects are replaced.
        """
        if self._area.hot.is_lost(capture.id):
            raise images_lost("store the processes of", capture)
        again = self._names.standing(capture.id).image is not None
        self.fill(capture)
        earlier, image = self._nearest_stored(capture)
        if again or (earlier is not None and not self._names.standing(earlier.id).durable):
            earlier = None  # its unchanged files would not be looked at
        expected = sum(int(record.get("size_bytes") or 0) for record in capture.layers.values())
        if earlier is None:  # else only changed files are read, if possible
            expected += self._area.pool.usage(capture.tree)
        on_progress(0, expected)
        parents = [image] if image else []
        order = _ingest_order(self.store, self._area, capture, parents, earlier, again=again)
        return self.workers.run(order, Ingested, lambda done: on_progress(done, expected if done <= expected else None))

    def make_hot(self, capture: Capture) -> None:
        """Extract a capture from the store, unless it is hot, or the store does not have it."""
        with self.only_one(capture.id):
            image = self._names.standing(capture.id).image
            if image is not None and (not self.is_hot(capture) or self._area.hot.is_lost(capture.id)):
                with self._writing():
                    self._recall(capture, image)

    def fill(self, capture: Capture) -> None:
        """Have all files of the base in the hot copy, before it becomes an image or another capture's."""
        with contextlib.suppress(StoreDamaged):  # this is to be mended
            self.complete(capture)
        with self.only_one(capture.id):
            base_files.fill(self._area, capture)

    def complete(self, capture: Capture) -> None:
        """Extract files of the base that the machine had when the capture was extracted, and has no more."""
        if not base_files.missing(self._area, capture):
            return
        with self.only_one(capture.id):
            image, names = self._names.standing(capture.id).image, base_files.missing(self._area, capture)
            if image is not None and names:
                parts = [one for one in _parts(self._area, capture) if one.content == "named"]
                parts = [msgspec.structs.replace(one, only=names) for one in parts]
                order = Recall(
                    store=str(self.store), image=image, parts=parts, base=self._area.base_folder(capture.setting.base)
                )
                self.workers.run(order, type(None))

    def evict(self, capture: Capture, is_held: Callable[[], bool]) -> bool:
        """Remove a capture outside of the store. Returns False if it is not hot or not durable, or `is_held`.

        Raises StoreDamaged if the store lacks objects of its image.
        """
        with self.only_one(capture.id):
            standing = self._names.standing(capture.id)
            if standing.image is None or not standing.durable or is_held() or not self.is_hot(capture):
                return False
            problems = self.workers.run(Check(store=str(self.store), image=standing.image), list[str])
            if problems:
                said = f"the store cannot restore it: {problems[0]}"
                next_step = "'waypoint verify --read-data' lists all damage"
                raise StoreDamaged("evict", f"capture {capture.id[:12]}", said, next_step)
            if is_held():
                return False
            self._area.pool.remove(capture.tree)
            self._area.hot.remove(capture.id)
            return True

    def digests(self, image: str) -> dict[str, str]:
        """The digests of the layers of an image that have content: of its only folder, or of all, as SHA-256 of a line
        for each. {} if the image cannot be read.
        """
        try:
            if self.keys.encryption is None:
                manifest = (self.store / "images" / image).read_bytes()
            else:
                manifest = self.workers.run(ReadImage(store=str(self.store), image=image), str).encode()
            content = msgspec.json.decode(manifest, type=_Layers)
        except (OSError, msgspec.MsgspecError, WaypointError):
            return {}
        return {kind: _digest(layer.roots) for kind, layer in content.layers.items() if layer.roots}

    def verify(self, on_progress: OnProgress, *, read_data: bool) -> list[Damage]:
        return self.workers.run(Verify(store=str(self.store), read_data=read_data), list[Damage], on_progress)

    def sizes(self, images: Sequence[str]) -> list[int]:
        """By how many bytes each image makes the store larger than the images before it in the list do."""
        return self.workers.run(Measure(store=str(self.store), images=list(images)), list[int]) if images else []

    def gc(self, keep: Sequence[str], on_progress: OnProgress) -> Freed:
        """Remove all images but `keep`. No image may be stored meanwhile."""
        return self.workers.run(Collect(store=str(self.store), keep=list(keep)), Freed, on_progress)

    def _nearest_stored(self, capture: Capture) -> tuple[Capture | None, str]:
        """The nearest ancestor that is in the store, and its image's id."""
        wanted = capture.parents
        for _ in range(_ANCESTORS):
            found = self._names.captures_of(wanted, may_lack=True)
            for ancestor in found.values():
                image = self._names.standing(ancestor.id).image
                if image is not None:
                    return ancestor, image
            wanted = [parent for ancestor in found.values() for parent in ancestor.parents]
        return None, ""

    def _recall(self, capture: Capture, image: str) -> None:
        """Extract to other names first. They are disposable: after a crash the next daemon removes them."""
        pool, hot = self._area.pool, self._area.hot
        size = sum(int(record.get("size_bytes") or 0) for record in capture.layers.values())
        self._check_room(capture, size)
        tree, folder = new_id(), new_id()
        with self._names.change("restore") as change:
            change.add_disposable(tree)
            change.add_disposable(folder)
        try:
            places = {
                Path(pool.path(capture.tree)): Path(pool.create(tree)),
                hot.folder / capture.id: hot.folder / folder,
            }
            with stage(Stage.LOAD, total=size or None, unit="bytes") as under_way:
                order = _recall_order(self.store, self._area, capture, image, places)
                self.workers.run(order, type(None), under_way.report)
            if (hot.folder / folder).exists():
                hot.remove(capture.id)  # what a crash has left of it
                os.rename(hot.folder / folder, hot.folder / capture.id)
            if self.is_hot(capture):  # only its images were lost; its files stay if the store is damaged or locked
                pool.remove(capture.tree)
            pool.snapshot(tree, capture.tree, sealed=True)
        finally:
            pool.remove(tree)
            with contextlib.suppress(OSError):
                remove_path(hot.folder / folder)

    def _check_room(self, capture: Capture, size: int) -> None:
        """Raise Failed if the disk certainly has no room for the copy. `size`: of all but the session's files."""
        free = filesystem.free_bytes(self._area.hot.folder)
        if size > free:
            said = f"it needs {mib(size)} outside of the store, and the disk of the home has {mib(free)} free"
            next_step = NEXT_STEPS[errno.ENOSPC]
            raise Failed("read from the store", f"capture {capture.id[:12]}", said, next_step, code="disk-full")

    @contextlib.contextmanager
    def only_one(self, capture_id: str) -> Iterator[None]:
        """A lock of the capture, which `make_hot` takes, too."""
        with self._lock:
            one = self._moving.setdefault(capture_id, threading.Lock())
        with one:
            yield


class _Roots(msgspec.Struct):
    roots: dict[str, str] = {}


class _Layers(msgspec.Struct):
    """The part of a manifest (store/manifest.py) that this module reads."""

    layers: dict[str, _Roots]


def _digest(roots: dict[str, str]) -> str:
    if len(roots) == 1:
        return next(iter(roots.values()))
    return hashlib.sha256("".join(f"{name} {roots[name]}\n" for name in sorted(roots)).encode()).hexdigest()


def _ingest_order(
    store: Path, area: Area, capture: Capture, parents: Sequence[str], earlier: Capture | None, *, again: bool
) -> Ingest:
    """`earlier`: the capture before it, which is in the store as the first of `parents`."""
    return Ingest(
        store=str(store),
        parts=[part for part in _parts(area, capture) if Path(part.path).is_dir()],
        layers={kind: _layer_facts(kind, record) for kind, record in capture.layers.items()},
        parents=list(parents),
        platform=_platform(capture.machine),
        facts=_facts(capture),
        earlier=parents[0] if earlier is not None else "",
        earlier_tree=area.pool.path(earlier.tree) if earlier is not None else "",
        again=again,
    )


def base_order(store: Path, capture: Capture, tree: str) -> Ingest:
    """The order to store a pinned base whose files are in the tree at the path `tree`."""
    part = StoredPart(layer=FilesLayer.KIND, name="tree", path=tree, content="session")
    return Ingest(
        store=str(store), parts=[part], layers={FilesLayer.KIND: {}}, parents=[], platform={}, facts=_facts(capture)
    )


def _facts(capture: Capture) -> Any:  # noqa: ANN401  # JSON
    return _portable(
        {
            "tier": capture.tier,
            "setting": msgspec.to_builtins(capture.setting),
            "degraded": msgspec.to_builtins(capture.degraded),
            "folder": capture.folder,
            "exit": capture.exit,
        }
    )


def _recall_order(store: Path, area: Area, capture: Capture, image: str, places: dict[Path, Path]) -> Recall:
    """`places`: for folders of the capture that hold its parts, the folders to extract these to."""

    def moved(path: str) -> str:
        for origin, target in places.items():
            if Path(path).is_relative_to(origin):
                return str(target / Path(path).relative_to(origin))
        raise AssertionError(path)

    parts = sorted(_parts(area, capture), key=lambda part: len(part.path))  # a folder before those in it
    found = [msgspec.structs.replace(part, path=moved(part.path)) for part in parts]
    return Recall(store=str(store), image=image, parts=found, base=area.base_folder(capture.setting.base))


def _parts(area: Area, capture: Capture) -> list[StoredPart]:
    return [
        _part(kind, name, folder)
        for kind in capture.layers
        for name, folder in layer_of(kind).folders(area, capture, kind).items()
    ]


def _part(kind: str, name: str, folder: StoredFolder) -> StoredPart:
    return StoredPart(layer=kind, name=name, path=str(folder.path), content=folder.content, only=list(folder.only))


def _layer_facts(kind: str, record: dict[str, Any]) -> dict[str, Any]:
    return {name: _portable(value) for name, value in record.items() if name not in _LEFT_OUT.get(kind, ())}


def _platform(machine: Machine | None) -> dict[str, Any]:
    if machine is None:
        return {}
    return {
        "kernel": machine.kernel,
        "architecture": machine.architecture,
        "cpu": machine.cpu,
        "cpu_features": sorted(machine.cpu_features),
    }


def _portable(value: Any) -> Any:  # noqa: ANN401  # JSON
    """Integers that JSON readers may round (RFC 8785, 3.2.2.3) become text."""
    match value:
        case dict():
            return {name: _portable(one) for name, one in value.items()}
        case list() | tuple():
            return [_portable(one) for one in value]
        case int() if not isinstance(value, bool) and abs(value) > _MAX_JSON_INT:
            return str(value)
    return value
