"""What an image consists of: its manifest, which is the same wherever the same capture of the same parents is put."""

from typing import Annotated

import msgspec

from waypoint.capture.base_files.open_inodes import Inodes
from waypoint.model.errors import StoreDamaged
from waypoint.model.records import Capture, Layers, Setting, Tier
from waypoint.store.content.object_reader import ANOTHER
from waypoint.store.content.opened import Store

FORMAT = 1
FILES, PROCESSES, MEMORY, REST, BASE = "files", "processes", "memory", "rest", "base"


class StoredPart(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of a capture, in the store. `root`: the digest of its ROOT, in hex."""

    root: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ImageManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`parents`: the ids of the images that this one goes on from. `parts`: the folders of the capture: `files` (of the
    pool), `processes` (CRIU's images), `memory` (of /dev/shm), `rest`, `base` (files of the base), and `attached/KIND`
    for what is attached. `layers`: the records of the layers, without what has a meaning on one machine or at one time
    only. `base_left_out`: in words, which files of the base it lacks that its processes have. `inodes`: of files in
    the part `files` that processes write to.
    """

    format: int = FORMAT
    parents: list[str]
    tier: Tier
    setting: Setting
    folder: str
    degraded: list[str]
    layers: Layers
    parts: dict[str, StoredPart]
    base_left_out: list[str] | msgspec.UnsetType = msgspec.UNSET
    inodes: Inodes | msgspec.UnsetType = msgspec.UNSET


_encoder = msgspec.json.Encoder(order="deterministic")


def manifest_of(
    capture: Capture,
    parents: list[str],
    parts: dict[str, StoredPart],
    base_left_out: list[str] | None = None,
    inodes: Inodes | None = None,
) -> bytes:
    """The manifest's bytes: JSON in one fixed form."""
    layers = capture.layers
    files = msgspec.structs.replace(layers.files, tree="")
    processes = layers.processes and msgspec.structs.replace(layers.processes, frozen_us=0)
    attached = layers.attached
    if attached is not msgspec.UNSET:
        attached = {kind: msgspec.structs.replace(one, stamp="", left_out=[]) for kind, one in sorted(attached.items())}
    manifest = ImageManifest(
        parents=parents,
        tier=capture.tier,
        setting=capture.setting,
        folder=capture.folder,
        degraded=capture.degraded,
        layers=msgspec.structs.replace(layers, files=files, processes=processes, attached=attached),
        parts=parts,
        base_left_out=base_left_out or msgspec.UNSET,
        inodes=inodes or msgspec.UNSET,
    )
    return _encoder.encode(manifest)


def read_manifest(ident: str, content: bytes) -> ImageManifest:
    """Raises StoreDamaged if it is none of this format. `ident`: the image's id."""
    try:
        manifest = msgspec.json.decode(content, type=ImageManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreDamaged("read", f"image {ident[:16]}", str(error), ANOTHER) from error
    if manifest.format != FORMAT:
        said = f"it is of format {manifest.format}, this version of Waypoint reads {FORMAT}"
        raise StoreDamaged("read", f"image {ident[:16]}", said, "use the version of Waypoint that made it")
    return manifest


def manifest_in(store: Store, image: str) -> ImageManifest:
    """The manifest of an image of the store. Raises UnknownName, StoreDamaged, OSError."""
    return read_manifest(image, store.images.read(image).manifest)


def digests_of(parts: dict[str, StoredPart]) -> tuple[tuple[str, str], ...]:
    """The names of the parts with their digests, as of Standing."""
    return tuple((name, part.root) for name, part in sorted(parts.items()))


def roots_of(manifest: ImageManifest) -> list[bytes]:
    """The digests of what the image consists of."""
    return [bytes.fromhex(part.root) for part in manifest.parts.values()]
