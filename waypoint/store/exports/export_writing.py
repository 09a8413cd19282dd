"""From a store to an export."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from waypoint.model.errors import UsageProblem
from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.opened import Store
from waypoint.store.exports import export_format
from waypoint.store.exports.export_format import OBJECT_HEAD, PieceKind, PieceWriter, new_header
from waypoint.store.exports.signatures import public_of, signed
from waypoint.store.packs.digests import Kind, digest_of
from waypoint.store.trees.reachable import children_first, reachable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class Consignment(NamedTuple):
    """What is exported. `name`: what the last image is called, "" if it has no name. `images`: those that others go on
    from first. `roots`: all that they consist of, digests. `absent`: how many that they go on from are left out. `key`:
    what it is signed with. `passphrase`: what it is encrypted with; empty: not.
    """

    name: str
    images: Sequence[ImageFile]
    roots: Sequence[bytes]
    absent: int
    key: "Ed25519PrivateKey | None"
    passphrase: bytes


def size_of(store: Store, consignment: Consignment) -> int:
    """About how many bytes the export will have: as the objects lie in the store now. Raises UsageProblem if it would
    have more than a reader takes.
    """
    objects = size = 0
    with store.reading() as reader:
        for _, digest in reachable(reader, consignment.roots):
            objects += 1
            size += reader.stored_size(digest)
    about = sum(len(part) for image in consignment.images for part in image)
    if objects > export_format.MOST_OBJECTS or about > export_format.MOST_IMAGE_BYTES:
        raise _too_much(consignment, objects, about)
    return size


def _too_much(consignment: Consignment, objects: int, about: int) -> UsageProblem:
    most = f"{export_format.MOST_OBJECTS} files and parts of files, and {export_format.MOST_IMAGE_BYTES >> 20} MiB"
    said = f"it would have {objects} files and parts of files, and {about >> 20} MiB of what is told of its images"
    is_alone = len(consignment.images) == 1
    next_step = "remove some of them, and checkpoint again" if is_alone else "leave out what it goes on from: --alone"
    return UsageProblem("export", consignment.name, f"{said}; who imports it takes {most}", next_step)


def write_export(store: Store, consignment: Consignment, out: Callable[[bytes], None]) -> tuple[int, int]:
    """Hand the export to `out`, piece by piece. Returns how many objects and bytes it has. Raises StoreDamaged, Failed,
    and what `out` raises.
    """
    key, passphrase = consignment.key, consignment.passphrase
    writer = PieceWriter(out, new_header(encrypted=bool(passphrase), signed=key is not None), passphrase)
    head = [consignment.name, len(consignment.images), consignment.absent]
    writer.put(PieceKind.HEAD, msgspec.msgpack.encode(head))
    count = 0
    with store.reading() as reader:
        for kind, digest in children_first(reader, consignment.roots):
            length, encoded = reader.alone(kind, digest)
            about = OBJECT_HEAD.pack(kind, encoded.codec, length, digest)
            writer.put(PieceKind.OBJECT, about + encoded.payload)
            count += 1
    for image in consignment.images:
        writer.put(PieceKind.IMAGE, msgspec.msgpack.encode(image))
    digest, signer, signature = writer.digest(), b"", b""
    if key is not None:
        ident = digest_of(Kind.MANIFEST, consignment.images[-1].manifest)
        signer, signature = public_of(key), key.sign(signed(ident, digest))
    writer.put(PieceKind.END, msgspec.msgpack.encode([digest, signer, signature]))
    return count, writer.size
