"""Archives: writing images of a store as one file, and reading such a file, which may be of hostile origin.

The packs of an archive have everything that its images need; they alone are read by an import. The OCI layers beside
them are for other tools, and have files and processes of the latest image a second time.
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from waypoint.model.errors import StoreDamaged
from waypoint.store import manifest as manifests
from waypoint.store import trees
from waypoint.store.archives.layout import (
    CONFIG_TYPE,
    INDEX_TYPE,
    MANIFEST_TYPE,
    BadLayout,
    Descriptor,
    LayoutReader,
    LayoutWriter,
    OciIndex,
    OciManifest,
)
from waypoint.store.index import Location
from waypoint.store.manifest import Manifest
from waypoint.store.objects import Codec, Kind, address_of, decode, digest_of
from waypoint.store.packs import BadPack, PackRow, PackWriter, read_directory_at
from waypoint.store.store import PACK_BYTES, Reader, Writer

PACK_TYPE = "application/vnd.waypoint.pack.v1"
IMAGE_TYPE = "application/vnd.waypoint.image.v1+json"
RECORDS_TYPE = "application/vnd.waypoint.captures.v1+json"
ENVELOPE_TYPE = "application/vnd.dsse.envelope.v1+json"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_NAME = "org.opencontainers.image.ref.name"
_SIGNATURE = "waypoint.signature"
KEY = bytes(32)
"""Of the addresses in an archive, which need no secrecy: the content is beside them."""
_MAX_OBJECTS = 1 << 20
_MAX_IMAGES = 4096
_MAX_RECORDS_BYTES = 64 << 20
_AGAIN = "export it again, and copy the whole file"


class Packing:
    """Writes objects to packs in the folder `scratch`, and each complete pack to `layout`."""

    def __init__(self, reader: Reader, layout: LayoutWriter, scratch: str) -> None:
        self._reader = reader
        self._layout = layout
        self._path = f"{scratch}/pack"
        self._pack: PackWriter | None = None
        self._added: dict[bytes, bytes] = {}  # addresses in the archive, by addresses in the store
        self.packs: list[Descriptor] = []

    def add(self, digest: bytes) -> None:
        self._copy(self._reader.address(digest), digest)

    def finish(self) -> None:
        if self._pack is None:
            return
        pack, self._pack = self._pack, None
        pack.finish()
        try:
            self.packs.append(self._layout.stream(PACK_TYPE, self._pass_on))
        finally:
            os.unlink(self._path)

    def _pass_on(self, write: Callable[[bytes], None]) -> None:
        with open(self._path, "rb", buffering=0) as file:
            while piece := file.read(1 << 20):
                write(piece)

    def _copy(self, address: bytes, digest: bytes | None) -> bytes:
        """Copy an object, after its base. `digest`: None for a base, whose digest follows from its content."""
        if address in self._added:
            return self._added[address]
        row, payload = self._reader.payload(address)
        if digest is None:
            digest = digest_of(Kind(row.kind), decode(Codec(row.codec), payload, row.length))
        base = self._copy(row.base, None) if row.base is not None else None
        new = self._added[address] = address_of(digest, KEY)
        if self._pack is None:
            self._pack = PackWriter(self._path)
        self._pack.add(PackRow(new, row.kind, row.codec, row.stored, row.length, base), payload)
        if self._pack.size >= PACK_BYTES:
            self.finish()
        return new


class Content(NamedTuple):
    """The content of an archive that is being written. `layers`: OCI layers, and the SHA-256 of each without
    compression. `created`: RFC 3339. `records`: JSON about the captures of the images.
    """

    name: str
    images: list[bytes]
    records: bytes
    layers: list[tuple[Descriptor, str]]
    packs: list[Descriptor]
    created: str
    architecture: str


def finish(layout: LayoutWriter, content: Content, sign: Callable[[bytes], bytes] | None) -> Descriptor:
    """Write everything that follows the layers and packs. `sign`: makes the DSSE envelope of a descriptor."""
    others = [layout.add(IMAGE_TYPE, one) for one in content.images] + [layout.add(RECORDS_TYPE, content.records)]
    blobs = [*content.packs, *others]
    plain = [f"sha256:{digest}" for _, digest in content.layers] + [one.digest for one in blobs]
    config = {
        "created": content.created,
        "architecture": content.architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": plain},
    }
    manifest = OciManifest(
        schema_version=2,
        media_type=MANIFEST_TYPE,
        config=layout.add(CONFIG_TYPE, msgspec.json.encode(config)),
        layers=[one for one, _ in content.layers] + blobs,
        annotations={"org.opencontainers.image.created": content.created},
    )
    subject = layout.add(MANIFEST_TYPE, msgspec.json.encode(manifest))
    annotations = {}
    if sign is not None:
        empty = layout.add(_EMPTY_TYPE, b"{}")
        referrer = OciManifest(
            schema_version=2,
            media_type=MANIFEST_TYPE,
            artifact_type=ENVELOPE_TYPE,
            config=empty,
            layers=[layout.add(ENVELOPE_TYPE, sign(msgspec.json.encode(subject)))],
            subject=subject,
        )
        annotations[_SIGNATURE] = layout.add(MANIFEST_TYPE, msgspec.json.encode(referrer)).digest
        annotations[f"{_SIGNATURE}.size"] = str(len(msgspec.json.encode(referrer)))
    named = msgspec.structs.replace(subject, annotations={_NAME: content.name})
    # Only one manifest is listed: other tools ask for a name if there are several.
    index = OciIndex(schema_version=2, media_type=INDEX_TYPE, manifests=[named], annotations=annotations)
    layout.finish(index)
    return subject


class Archive(Reader):
    """The objects and images of an archive. `subject`: the descriptor of its manifest. Raises StoreDamaged.

    `max_bytes`: the most that the objects may have together when they are decoded.
    """

    def __init__(self, fd: int, max_bytes: int) -> None:
        try:
            self._layout = LayoutReader(fd)
            self._read_layout(max_bytes)
        except (BadLayout, BadPack) as error:
            raise refused(str(error)) from error

    def _read_layout(self, max_bytes: int) -> None:
        self._key = KEY
        self._places: dict[str, int] = {}
        self._objects: dict[bytes, Location] = {}
        self._size = 0
        self._index = self._layout.index()
        if len(self._index.manifests) != 1:
            raise BadLayout(f"its index.json lists {len(self._index.manifests)} images instead of one")
        (named,) = self._index.manifests
        self.subject = Descriptor(media_type=named.media_type, digest=named.digest, size=named.size)
        found = self._layout.manifest(named)
        packs = [one for one in found.layers if one.media_type == PACK_TYPE]
        images = [one for one in found.layers if one.media_type == IMAGE_TYPE]
        records = [one for one in found.layers if one.media_type == RECORDS_TYPE]
        if len(records) != 1 or not images:
            raise BadLayout("it has no captures of Waypoint")
        if len(images) > _MAX_IMAGES:
            raise BadLayout(f"it has {len(images)} images; at most {_MAX_IMAGES} are accepted")
        self.records = self._layout.read(records[0], _MAX_RECORDS_BYTES)
        self.manifests: dict[str, Manifest] = {}
        for one in images:
            image_id = one.digest[7:]
            self.manifests[image_id] = manifests.decode(image_id, self._layout.read(one, manifests.MAX_BYTES))
        for one in packs:
            self._layout.check(one)
            self._add_pack(one, max_bytes)

    def _add_pack(self, one: Descriptor, max_bytes: int) -> None:
        place, size = self._layout.extent(one)
        self._places[one.digest] = place
        for row, offset in read_directory_at(self._layout.fd, place, size, is_sealed=False).placed():
            if row.address in self._objects:
                raise BadPack("it has an object twice")
            self._objects[row.address] = Location(
                row.kind, row.codec, one.digest, offset, row.stored, row.length, row.base
            )
            self._size += row.length
        if len(self._objects) > _MAX_OBJECTS:
            raise BadPack(f"it has more than {_MAX_OBJECTS} objects")
        if self._size > max_bytes:
            raise BadPack(f"its objects have {self._size} bytes or more, and {max_bytes} are free")

    def find(self, address: bytes) -> Location | None:
        return self._objects.get(address)

    def find_each(self, addresses: Sequence[bytes]) -> dict[bytes, Location]:
        return {address: self._objects[address] for address in addresses if address in self._objects}

    def check_objects(self, on_progress: Callable[[int], None]) -> None:
        """Read every object."""
        done = 0
        for address, found in self._objects.items():
            self.check(address)
            done += found.length
            on_progress(done)

    def envelope(self) -> bytes | None:
        """The DSSE envelope of a signature; None if there is none."""
        digest, size = (self._index.annotations.get(name, "") for name in (_SIGNATURE, f"{_SIGNATURE}.size"))
        if not digest:
            return None
        try:
            where = Descriptor(media_type=MANIFEST_TYPE, digest=digest, size=int(size))
            (envelope,) = self._layout.manifest(where).layers
            return self._layout.read(envelope, 1 << 16)
        except (BadLayout, ValueError) as error:
            raise refused(f"its signature cannot be read: {error}") from error

    def put_into(self, writer: Writer) -> None:
        """Add all that the images need to a store, then the images."""
        seen: set[bytes] = set()
        for manifest in self.manifests.values():
            for kind, digest in trees.reachable(self, manifest.roots(), seen):
                self._put(writer, kind, digest)
        for manifest in self.manifests.values():
            writer.add_image(manifest)

    def _put(self, writer: Writer, kind: Kind, digest: bytes) -> None:
        if writer.has(digest):
            return
        found = self.find(self.address(digest))
        near = None
        if found is not None and found.base is not None:
            near = writer.put(kind, self._read(found.base, kind))
        writer.put(kind, self.get(kind, digest), near)

    def _payload(self, address: bytes, found: Location) -> bytes:
        payload = os.pread(self._layout.fd, found.stored, self._places[found.pack] + found.offset)
        if len(payload) != found.stored:
            raise refused("it ends within a pack")
        return payload


def refused(said: str, code: str = "archive-refused") -> StoreDamaged:
    return StoreDamaged("import", "the archive", said, _AGAIN, code=code)
