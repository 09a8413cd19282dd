"""Carrying out the orders of the daemon, in the store's own process."""

import contextlib
import os
import time
from collections.abc import Callable, Collection

from waypoint.capture.layers.base_listing import LISTING, MAX_LISTING_BYTES, differing, parse
from waypoint.capture.storing.gathering import gather
from waypoint.capture.storing.orders import (
    Check,
    Collect,
    Export,
    Gather,
    Import,
    Ingest,
    Ingested,
    Inspect,
    Measure,
    ReadImage,
    Recall,
    StoredPart,
    StoreOrder,
    Task,
    Unlock,
    Unpack,
    Verify,
)
from waypoint.capture.storing.page_cuts import PageCuts
from waypoint.linux.storage import btrfs_changes
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import StoreDamaged, UnknownName
from waypoint.processes.criu import inodes
from waypoint.store import config, manifest, trees, upkeep
from waypoint.store.extract import extract
from waypoint.store.manifest import ImageLayer, Manifest
from waypoint.store.scan import Changed, ScanOptions, store_folder
from waypoint.store.store import Reader, Store, Writer, make_store

OnProgress = Callable[[int], None]

INGEST_NICE = 10
_whole: dict[object, set[bytes]] = {}
"""The objects that checks have found, by the state of the store: at most of the last state. Images that are checked one
after the other have most objects in common.
"""


def carry_out(task: Task, on_progress: OnProgress) -> object:
    """Carry out the order, and return the answer. Raises WaypointError, OSError."""
    order = task.order
    if isinstance(order, Unlock):
        from waypoint.store import locking  # which loads more

        return locking.unlock(order.store, order.secret.encode()).hex()
    store = _opened(order.store, bytes.fromhex(task.key))
    # Only a restore waits for its end.
    os.setpriority(os.PRIO_PROCESS, 0, 0 if isinstance(order, Recall) else INGEST_NICE)
    return _carry_out(store, order, on_progress)


def _problems(store: Store, image: str) -> list[str]:
    state = store.state()
    if state not in _whole:
        _whole.clear()
    with store.reading() as reader:
        return list(upkeep.image_problems(reader, image, _whole.setdefault(state, set())))


def _carry_out(store: Store, order: StoreOrder, on_progress: OnProgress) -> object:
    answer: object = None
    match order:
        case Ingest():
            answer = _ingest(store, order, on_progress)
        case Gather() | Unpack():
            answer = _fill(order, on_progress)
        case Recall():
            _recall(store, order, on_progress)
        case Verify():
            answer = upkeep.verify(store, read_data=order.read_data, on_progress=on_progress)
        case Check():
            answer = _problems(store, order.image)
        case Measure():
            with store.reading() as reader:
                answer = upkeep.sizes(reader, order.images)
        case ReadImage():
            answer = store.read_manifest(order.image).decode()
        case Collect():
            answer = upkeep.gc(store, order.keep, on_progress)
        case Export() | Inspect() | Import():
            from waypoint.capture.storing import archive_work  # which loads more

            answer = archive_work.carry_out(store, order, on_progress)
    return answer


def _fill(order: Gather | Unpack, on_progress: OnProgress) -> object:
    if isinstance(order, Gather):
        return gather(order, on_progress)
    from waypoint.capture.storing import unpacking  # which loads more

    return unpacking.unpack(order, on_progress)


def _opened(path: str, key: bytes) -> Store:
    """Open the store. Makes one that is missing, unless the home is encrypted."""
    try:
        return Store(path, key or None)
    except FileNotFoundError as error:
        if key:
            raise config.damaged(path, "config.json is missing") from error
        return make_store(path)


def _ingest(store: Store, order: Ingest, on_progress: OnProgress) -> Ingested:
    begin = time.monotonic()
    with store.writing() as writer:
        writer.on_progress, writer.rereads = on_progress, order.again
        scan = _CaptureScan(writer, order)
        layers = {kind: ImageLayer(facts=facts, roots=scan.roots(kind)) for kind, facts in order.layers.items()}
        image = writer.add_image(manifest.new(order.parents, layers, order.platform, order.facts))
        taken_ms = round(1000 * (time.monotonic() - begin), 3)
        return Ingested(
            image=image,
            content_bytes=writer.passed,
            new_bytes=writer.new_bytes,
            ms=taken_ms,
            changed_only=scan.changed is not None,
        )


class _CaptureScan:
    """Stores the folders of a capture. Parts of the earlier image that cannot be read are ignored."""

    def __init__(self, writer: Writer, order: Ingest) -> None:
        self.writer = writer
        self.order = order
        self.changed: Changed | None = None
        self.earlier: Manifest | None = None
        if order.earlier:
            try:
                self.earlier = writer.store.read_image(order.earlier)
            except (UnknownName, StoreDamaged):
                self.earlier = None

    def roots(self, kind: str) -> dict[str, str]:
        return {part.name: self._root(part).hex() for part in self.order.parts if part.layer == kind}

    def _root(self, part: StoredPart) -> bytes:
        layer = self.earlier.layers.get(part.layer) if self.earlier is not None else None
        digest = layer.roots.get(part.name) if layer is not None else None
        earlier = bytes.fromhex(digest) if digest is not None else None
        with open_folder(part.path) as folder:
            if earlier is not None:
                with contextlib.suppress(StoreDamaged):  # the earlier image cannot be read; `verify` reports it
                    return store_folder(self.writer, folder, self._options(part, earlier))
            return store_folder(self.writer, folder, self._options(part, None))

    def _options(self, part: StoredPart, earlier: bytes | None) -> ScanOptions:
        options = ScanOptions(earlier, only=tuple(map(os.fsencode, part.only)))
        match part.content:
            case "session":
                work = [os.fsencode(f"{name}/work") for name in os.listdir(part.path)]
                return ScanOptions(earlier, self._changed_files(part.path, earlier), leave_out=work)
            case "pages":
                return ScanOptions(earlier, cut=PageCuts(part.path, self.writer, earlier), is_timeless=True)
            case "named":
                changed = Changed([os.fsencode(LISTING)]) if earlier is not None else None
                return ScanOptions(earlier, changed, is_timeless=True)
            case "own":
                return ScanOptions(earlier, is_timeless=True, only=options.only)
            case "user":
                return options

    def _changed_files(self, path: str, earlier: bytes | None) -> Changed | None:
        self.changed = None
        if earlier is not None and self.order.earlier_tree:
            found = btrfs_changes.changes(path, self.order.earlier_tree)
            self.changed = Changed(*found) if found is not None else None
        return self.changed


def _recall(store: Store, order: Recall, on_progress: OnProgress) -> None:
    image = store.read_image(order.image)
    done = 0

    def report(written: int) -> None:
        on_progress(done + written)

    roots = [
        (part, bytes.fromhex(layer.roots[part.name]))
        for part in order.parts
        if (layer := image.layers.get(part.layer)) is not None and part.name in layer.roots
    ]
    with store.reading() as reader:
        noted = next((_inodes(reader, root) for part, root in roots if part.content == "pages"), {})
        for part, root in roots:
            only = _lacking(reader, root, part, order.base) if part.content == "named" else None
            done += _extract(reader, root, part.path, noted if part.content == "session" else {}, report, only)


def _inodes(reader: Reader, images: bytes) -> dict[bytes, int]:
    """The inode numbers that the session's open files had."""
    entry = trees.read_path(reader, images, os.fsencode(inodes.INODES))
    return inodes.parse(trees.read_content(reader, entry, inodes.MAX_BYTES)) if entry is not None else {}


def _lacking(reader: Reader, root: bytes, part: StoredPart, base: str) -> set[bytes] | None:
    """The names in a folder of base files that are extracted; None: all."""
    if part.only:
        return set(map(os.fsencode, part.only))
    entry = trees.read_path(reader, root, LISTING.encode())
    try:
        found = parse(trees.read_content(reader, entry, MAX_LISTING_BYTES)) if entry is not None else []
    except ValueError:  # the restore reports it
        return None
    return {LISTING.encode(), *(file.content.encode() for file in differing(found, base))}


def _extract(
    reader: Reader,
    root: bytes,
    path: str,
    numbers: dict[bytes, int],
    on_progress: OnProgress,
    only: Collection[bytes] | None,
) -> int:
    written = 0

    def report(size: int) -> None:
        nonlocal written
        written = size
        on_progress(size)

    os.makedirs(path, mode=0o700, exist_ok=True)
    with open_folder(path) as folder:
        extract(reader, root, folder, report, inodes.take(folder, numbers), only)
    return written
