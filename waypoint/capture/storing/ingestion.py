"""Putting a capture into the store, as an image."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator

import msgspec

from waypoint.capture.base_files import base_listing
from waypoint.capture.base_files.base_listing import BROUGHT, LISTING, BaseListing
from waypoint.capture.base_files.base_part import AlikeBase, PutBase, listing_in, moment_of, put_base
from waypoint.capture.base_files.open_inodes import NOTE, Inodes, inodes_of
from waypoint.capture.in_memory.settling import SETTLING
from waypoint.capture.layers import hot
from waypoint.capture.storing.image_manifest import (
    BASE,
    FILES,
    MEMORY,
    PROCESSES,
    REST,
    StoredPart,
    digests_of,
    manifest_in,
    manifest_of,
    read_manifest,
)
from waypoint.capture.storing.orders import Ingested, Source
from waypoint.capture.storing.page_cuts import PageCuts
from waypoint.linux.snapshots import file_stamps
from waypoint.linux.snapshots.btrfs_send import Differences, differences
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.details.attached_records import ATTACHED_TO
from waypoint.model.errors import Failed, StoreDamaged, UnknownName
from waypoint.model.records import Capture
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.object_reader import ANOTHER
from waypoint.store.content.object_writer import ObjectWriter
from waypoint.store.content.opened import Store
from waypoint.store.trees.earlier import Earlier
from waypoint.store.trees.gathering import CutUp, cut_as_usual, gather, gather_names
from waypoint.store.trees.reachable import reachable
from waypoint.store.trees.updating import update

_Put = Callable[[ObjectWriter, Source, bytes], bytes]


def ingest(
    store: Store, source: Source, told: Callable[[int, int | None], None] = lambda done, total: None
) -> Ingested:
    """Put the capture into the store. On return the image survives a power loss. The same capture again costs little,
    also after an ingestion that was broken off. `told`: called now and then with how many bytes of content were seen
    to, and how many these are in all, which is known when the files of the session have been looked at.

    Raises StateConflict if somebody else writes to the store, Failed, StoreDamaged (the capture is not what was taken).
    If `source.earlier` cannot be read, the capture is put without it, and what is damaged there is put again, if the
    capture has it, too.
    """
    with _told_of(source):
        _check_there(source)
        try:
            return _ingest(store, source, told)
        except (StoreDamaged, UnknownName):  # of the capture's own files it would be another error
            if not source.earlier:
                raise
            return _ingest(store, msgspec.structs.replace(source, earlier="", before=""), told)


def _check_there(source: Source) -> None:
    """Raise StoreDamaged if the capture lacks something that it should have."""
    said = "" if os.path.isdir(source.tree) else "its files are missing"
    if (processes := source.capture.layers.processes) is not None:
        try:
            size = hot.image_bytes(source.images)
        except FileNotFoundError:
            said = "the images of its processes are missing"
        else:
            if size != processes.size_bytes:
                said = f"the images of its processes have {size} bytes, written were {processes.size_bytes}"
    if said:
        raise StoreDamaged("put into the store", f"the capture {source.capture.id[:12]}", said, ANOTHER)


def _ingest(store: Store, source: Source, told: Callable[[int, int | None], None]) -> Ingested:
    with store.writing("put a capture into") as writer:
        earlier = _parts(store, source.earlier)
        parts: dict[str, StoredPart] = {}
        writer.told = lambda done: told(done, None)
        for name, put in _parts_of(source):
            root = put(writer, source, bytes.fromhex(earlier[name].root) if name in earlier else b"")
            if root:
                parts[name] = StoredPart(root=root.hex())
            if name == FILES:
                writer.told = functools.partial(_told_at_most, told, writer.passed + _bytes_behind_files(source))
        base = _put_base(store, writer, source)
        if base.root:
            parts[BASE] = StoredPart(root=base.root.hex())
        writer.commit()
        if base.listing != BaseListing():
            base_listing.save(source.hot, base.listing)
        manifest = manifest_of(source.capture, source.parents, parts, base.listing.left_out, _inodes(source))
        image = store.images.add(ImageFile(manifest, msgspec.json.encode(source.capture)))
        return Ingested(image=image, parts=digests_of(parts), added_bytes=writer.added.stored)


def _inodes(source: Source) -> Inodes:
    processes = source.capture.layers.processes
    return inodes_of(source.images, processes, source.tree) if processes is not None else []


@contextlib.contextmanager
def _told_of(source: Source) -> Iterator[None]:
    """What the content of the capture's files has raised in the `with` block becomes an error in words."""
    tried, on = "put into the store", f"the capture {source.capture.id[:12]}"
    try:
        yield
    except EOFError as error:
        raise Failed(tried, on, "one of its files has become shorter while it was read", "try again") from error
    except ValueError as error:
        said = f"the images of its processes are none of CRIU's: {error}"
        raise StoreDamaged(tried, on, said, ANOTHER) from error


def _told_at_most(told: Callable[[int, int | None], None], total: int, done: int) -> None:
    told(done, max(done, total))


def _bytes_behind_files(source: Source) -> int:
    """About how many bytes the parts have that come after the files of the session."""
    folders = (source.images, *(f"{source.hot}/{name}" for name in (hot.MEMORY, hot.ATTACHED)))
    return sum(
        os.lstat(os.path.join(above, name)).st_size
        for folder in folders
        for above, _, names in os.walk(folder)
        for name in names
    )


def _parts_of(source: Source) -> list[tuple[str, _Put]]:
    """The parts that the capture may have, with what puts each."""
    of_kinds = source.capture.layers.attached  # not by layers.attached, which loads what takes captures
    kinds = [] if of_kinds is msgspec.UNSET else sorted(of_kinds)
    attached = [(f"{ATTACHED_TO}{kind}", _put_attached(kind)) for kind in kinds]
    return [*_PARTS.items(), *attached]


def _parts(store: Store, image: str) -> dict[str, StoredPart]:
    return manifest_in(store, image).parts if image else {}


def _put_base(store: Store, writer: ObjectWriter, source: Source) -> PutBase:
    with contextlib.suppress(UnknownName, StoreDamaged):  # then it is put as that of any other
        if (twin := _base_of_twin(store, writer, source.base.twin)) is not None:
            return twin
    places, most, hidden = (source.tree, source.images), source.base.most_bytes, source.base.hidden
    try:
        return put_base(writer, source.capture, places, _alike(store, writer, source), most, hidden)
    except StoreDamaged:  # of what they have, which is not needed
        return put_base(writer, source.capture, places, [], most, hidden)


def _base_of_twin(store: Store, writer: ObjectWriter, image: str) -> PutBase | None:
    """What an image of the very same processes has: it was put nearer to the moment at which they had the files, and
    perhaps on another machine. None if it was put by a version that kept none.
    """
    if not image:
        return None
    manifest = manifest_in(store, image)
    if BASE not in manifest.parts and not manifest.base_left_out:
        return None
    root = bytes.fromhex(manifest.parts[BASE].root) if BASE in manifest.parts else b""
    if root and not _is_sound(writer, root):
        return None
    return PutBase(root, listing_in(Earlier(writer, root), manifest.base_left_out or []))


def _alike(store: Store, writer: ObjectWriter, source: Source) -> list[AlikeBase]:
    alike = []
    for ident in source.base.alike if not writer.index.doubted else ():  # what they have is not read
        with contextlib.suppress(UnknownName, StoreDamaged):  # it was removed meanwhile; it is not needed
            image = store.images.read(ident)
            part = read_manifest(ident, image.manifest).parts.get(BASE)
            other = msgspec.json.decode(image.about, type=Capture)
            if part is not None and other.setting.base == source.capture.setting.base:
                alike.append(AlikeBase(Earlier(writer, bytes.fromhex(part.root)), moment_of(other)))
    return alike


def _put_files(writer: ObjectWriter, source: Source, earlier: bytes) -> bytes:
    """Where it is known what has changed, nothing else is read, unless something else cannot be read from the store."""
    changes = _changes(source) if earlier and source.before and _is_sound(writer, earlier) else None
    with open_folder(source.tree) as fd:
        return update(writer, fd, earlier, changes) if changes is not None else gather(writer, fd, earlier=earlier)


def _is_sound(writer: ObjectWriter, root: bytes) -> bool:
    """Whether the ROOT, and all that it refers to, can be read, as far as that is doubted. Raises StoreDamaged if it is
    not known to what it refers.
    """
    return not writer.index.doubted or all(writer.has(digest) for _, digest in reachable(writer, [root]))


def _changes(source: Source) -> Differences | None:
    """What is different in the files from those of `source.before`: as btrfs tells it, else by their stamps."""
    if source.is_comparable:
        with contextlib.suppress(OSError):  # such as a path that is too long for the kernel to tell
            return differences(source.before, source.tree)
    return file_stamps.differences(source.before, source.tree)


def _put_processes(writer: ObjectWriter, source: Source, earlier: bytes) -> bytes:
    def cuts(fd: int) -> PageCuts:
        return PageCuts(fd, Earlier(writer, earlier))

    return _put_folder(writer, source.images, earlier, cuts, is_timeless=True)


def _put_memory(writer: ObjectWriter, source: Source, earlier: bytes) -> bytes:
    return _put_folder(writer, f"{source.hot}/{hot.MEMORY}", earlier, lambda fd: cut_as_usual)


def _put_attached(kind: str) -> _Put:
    def put(writer: ObjectWriter, source: Source, earlier: bytes) -> bytes:
        return _put_folder(writer, f"{source.hot}/{hot.ATTACHED}/{kind}", earlier, lambda fd: cut_as_usual)

    return put


def _put_folder(
    writer: ObjectWriter, folder: str, earlier: bytes, cuts: Callable[[int], CutUp], *, is_timeless: bool = False
) -> bytes:
    """Nothing if there is no such folder. `cuts`: from its descriptor to how its files are cut."""
    if not os.path.isdir(folder):
        return b""
    with open_folder(folder) as fd:
        return gather(writer, fd, earlier=earlier, cut=cuts(fd), is_timeless=is_timeless)


def _put_rest(writer: ObjectWriter, source: Source, earlier: bytes) -> bytes:
    """All else that the hot area has of the capture: terminal, what ran, what was seen."""
    if not os.path.isdir(source.hot):  # of a session that had ended
        return b""
    with open_folder(source.hot) as fd:
        names = sorted(set(os.listdir(fd)) - {hot.IMAGES, SETTLING, hot.MEMORY, hot.ATTACHED, LISTING, BROUGHT, NOTE})
        return gather_names(writer, fd, names, earlier)


_PARTS: dict[str, _Put] = {
    FILES: _put_files,
    PROCESSES: _put_processes,
    MEMORY: _put_memory,
    REST: _put_rest,
}
"""In this order. Each returns the digest of a ROOT; nothing if the capture does not have the part."""
