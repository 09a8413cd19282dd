"""An export becomes images of the store. All of it is looked at first; what is refused leaves nothing in the store."""

import os
from collections.abc import Callable
from typing import BinaryIO, TypeVar

import msgspec

from waypoint.capture.storing.image_manifest import (
    BASE,
    FILES,
    MEMORY,
    PROCESSES,
    REST,
    ImageManifest,
    digests_of,
    read_manifest,
)
from waypoint.capture.storing.orders import ArrivedImage, Ingested, Inspect, Inspected, TakeExport
from waypoint.model.errors import HostLacks, StoreDamaged, UsageProblem
from waypoint.model.ids import is_id
from waypoint.model.names import is_name, parse_kind
from waypoint.model.records import Capture
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import Store
from waypoint.store.exports import arrived
from waypoint.store.exports.arrived import Weight
from waypoint.store.exports.export_format import NotAnExport, WrongPassphrase
from waypoint.store.exports.export_reading import check_export, take_objects
from waypoint.store.exports.signatures import public_key
from waypoint.store.packs.digests import Kind, digest_of

_TRIED, _ON = "import", "the export"
_AGAIN = "have it exported and copied again"
_BLOCK = 4096
_LATEST = 1 << 33  # in seconds since the epoch
_NEVER = {
    FILES: arrived.DEVICES,
    MEMORY: arrived.DEVICES | arrived.WHITEOUTS,
    PROCESSES: ~0,
    REST: ~0,
    BASE: ~0,
}
"""What the parts of a capture never have: in some of them the daemon itself reads files by name."""
_NEVER_ATTACHED = arrived.DEVICES | arrived.WHITEOUTS | arrived.SPECIAL
_SPARSE = (FILES, MEMORY)
"""The parts with files of the session's, as those that are attached: who reads one knows of holes. Waypoint or CRIU
reads files of the others as they are.
"""
_MOST_OF_REST = 66 << 20
"""What the daemon reads of a capture, in bytes: the scrollback of 2 MiB, and notes with bounds of their own."""
Made = TypeVar("Made")


def inspect(order: Inspect) -> Inspected:
    """Raises StoreDamaged for what is no export, or was altered; HostLacks (passphrase), UsageProblem (key)."""
    wanted = public_key(order.signer.encode()) if order.signer else b""
    images: list[ArrivedImage] = []

    def judge(image: ImageFile, weight: Callable[[bytes], Weight]) -> None:
        images.append(_judged(image, weight, order.most_bytes))

    found = _read(order.fd, lambda file: check_export(file, order.passphrase.encode(), judge))
    if wanted and found.signer != wanted:
        said = "it was signed with another key" if found.signer else "it has no signature"
        raise StoreDamaged(_TRIED, _ON, said, "have who made it sign it: waypoint export --sign KEYFILE")
    return Inspected(
        images=images,
        name=found.head.name,
        objects=found.objects,
        signer=found.signer.hex(),
        digest=found.digest.hex(),
    )


def take_in(store: Store, order: TakeExport) -> Ingested:
    """Raises StateConflict if somebody else writes to the store, Failed, StoreDamaged."""

    def take(file: BinaryIO) -> Ingested:
        images: list[ImageFile] = []
        with store.writing("import images into") as writer:
            digest = take_objects(file, order.passphrase.encode(), writer, images.append)
            if digest.hex() != order.digest:
                raise NotAnExport("it has changed meanwhile")
            writer.commit()
            made = [store.images.add(image) for image in images]
            return Ingested(image=made[-1], added_bytes=writer.added.stored)

    return _read(order.fd, take)


def _read(fd: int, act: Callable[[BinaryIO], Made]) -> Made:
    """What `act` returns of the file from its beginning, with what it raises in words."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        try:
            return act(file)
        except NotAnExport as error:
            raise StoreDamaged(_TRIED, _ON, str(error), _AGAIN) from error
        except WrongPassphrase as error:
            next_step = "give the passphrase that it was made with: --passphrase-file FILE, or --passphrase"
            raise HostLacks(_TRIED, _ON, str(error), next_step) from error


def _judged(image: ImageFile, weight: Callable[[bytes], Weight], most_bytes: int) -> ArrivedImage:
    """Raises NotAnExport for an image that no capture can have become."""
    ident = digest_of(Kind.MANIFEST, image.manifest).hex()
    try:
        manifest = read_manifest(ident, image.manifest)
        capture = msgspec.json.decode(image.about, type=Capture)
    except (StoreDamaged, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        said = error.said if isinstance(error, StoreDamaged) else str(error)
        raise NotAnExport(f"the image {ident[:16]} of it cannot be read: {said}") from error
    _check_parts(ident, manifest, weight, most_bytes)
    capture = _as_told(manifest, capture)
    if not _can_be(capture):
        raise NotAnExport(f"the image {ident[:16]} of it tells what cannot be")
    return ArrivedImage(image=ident, parents=manifest.parents, parts=digests_of(manifest.parts), capture=capture)


def _can_be(capture: Capture) -> bool:
    """Whether the record tells what that of a capture can. What a session is made with is looked at when it is made."""
    layers, setting = capture.layers, capture.setting
    paths = [setting.base, setting.cwd, *(path for bind in setting.binds for path in (bind.source, bind.target))]
    return (
        is_id(capture.id)
        and is_name(capture.branch)
        and 0 <= capture.created < _LATEST
        and (capture.tier == "live") == (layers.processes is not None)
        and all(_is_kind(kind) for kind in layers.attached or {})
        and (layers.shell is None or is_name(layers.shell.file))
        and (layers.terminal is None or max(layers.terminal.rows, layers.terminal.cols) < 1 << 16)
        and all(path.startswith("/") and "\0" not in path and ".." not in path.split("/") for path in paths)
    )


def _is_kind(text: str) -> bool:
    try:
        return parse_kind(text) == text
    except UsageProblem:
        return False


def _check_parts(ident: str, manifest: ImageManifest, weight: Callable[[bytes], Weight], most_bytes: int) -> None:
    if FILES not in manifest.parts:
        raise NotAnExport(f"the image {ident[:16]} of it has no files")
    size = 0
    for name, part in manifest.parts.items():
        found = weight(bytes.fromhex(part.root))
        if found.odd & _NEVER.get(name, _NEVER_ATTACHED):
            raise NotAnExport(f"the {name} of its image {ident[:16]} have a file of a kind that they never have")
        if name == REST and found.whole > _MOST_OF_REST:
            raise NotAnExport(
                f"the {name} of its image {ident[:16]} has {found.whole} bytes, and has at most {_MOST_OF_REST}"
            )
        is_sparse = name in _SPARSE or name not in _NEVER
        size += (found.size if is_sparse else found.whole) + found.names * _BLOCK
    if size > most_bytes:
        raise NotAnExport(f"its image {ident[:16]} would take {size} bytes on disk, and {most_bytes} are free")


def _as_told(manifest: ImageManifest, capture: Capture) -> Capture:
    """The record of the capture, in which all that the manifest tells is as it tells it: that is what the image's id
    stands for.
    """
    processes = manifest.layers.processes
    if processes is not None and capture.layers.processes is not None:
        processes = msgspec.structs.replace(processes, frozen_us=capture.layers.processes.frozen_us)
    attached, theirs = manifest.layers.attached, capture.layers.attached
    if attached is not msgspec.UNSET and theirs is not msgspec.UNSET:
        stamps = {kind: theirs[kind].stamp for kind in attached if kind in theirs}
        attached = {kind: msgspec.structs.replace(one, stamp=stamps.get(kind, "")) for kind, one in attached.items()}
    return msgspec.structs.replace(
        capture,
        tier=manifest.tier,
        setting=manifest.setting,
        folder=manifest.folder,
        degraded=manifest.degraded,
        layers=msgspec.structs.replace(manifest.layers, processes=processes, attached=attached),
    )
