"""From an export to a store. It may be of hostile origin: all of it is looked at before a store gets anything of it."""

from collections.abc import Callable
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

from waypoint.store.content.image_files import ImageFile
from waypoint.store.content.object_writer import ObjectWriter
from waypoint.store.exports import export_format
from waypoint.store.exports.arrived import Arrived, Weight
from waypoint.store.exports.export_format import OBJECT_HEAD, NotAnExport, PieceKind, PieceReader
from waypoint.store.exports.signatures import is_signature
from waypoint.store.packs.codecs import CannotDecode, Codec, decode
from waypoint.store.packs.digests import Kind, digest_of


class ExportHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: str
    images: int
    absent: int


class _End(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    digest: bytes
    signer: bytes
    signature: bytes


class ExportContent(NamedTuple):
    """What an export has besides its images. `objects`: how many. `signer`: the public key of who has signed it,
    checked; empty: nobody. `digest`: of the whole.
    """

    head: ExportHead
    objects: int
    signer: bytes
    digest: bytes


class _Images(dict[bytes, ImageFile]):
    """Those that have come, by their ids."""

    size = 0

    def add(self, image: ImageFile) -> None:
        ident = digest_of(Kind.MANIFEST, image.manifest)
        if ident in self:
            raise NotAnExport(f"it has the image {ident.hex()[:16]} twice")
        self[ident] = image
        self.size += sum(map(len, image))
        if self.size > export_format.MOST_IMAGE_BYTES:
            raise NotAnExport("it has more images than can be taken in: have it exported with --alone")


Judge = Callable[[ImageFile, Callable[[bytes], Weight]], None]
"""Called with each image, and what gives the weight of one of its ROOTs. Raises NotAnExport for one that cannot be."""


def check_export(file: BinaryIO, passphrase: bytes, judge: Judge) -> ExportContent:
    """Read all of it, and look whether it is what it should be: every object, and every reference. Takes the memory of
    a few objects, and about 150 bytes for each. Raises NotAnExport, WrongPassphrase, OSError.
    """
    reader = PieceReader(file, passphrase)
    arrived, images = Arrived(), _Images()
    head, end = ExportHead("", 0, 0), _End(b"", b"", b"")
    for place, (kind, content) in enumerate(reader.pieces()):
        if (kind == PieceKind.HEAD) != (place == 0) or (kind == PieceKind.OBJECT and images):
            raise NotAnExport("its pieces have another order")
        if kind == PieceKind.HEAD:
            head = _decoded(content, ExportHead)
        elif kind == PieceKind.OBJECT:
            arrived.add(*_object(content))
        elif kind == PieceKind.IMAGE:
            image = _decoded(content, ImageFile)
            images.add(image)
            judge(image, arrived.weight)
        else:
            end = _decoded(content, _End)
    if not images or len(images) != head.images:
        raise NotAnExport("it has other images than it says")
    if arrived.unneeded():
        raise NotAnExport("it has objects that no image consists of")
    signer = _signer(reader, end, list(images)[-1])
    return ExportContent(head, arrived.count, signer, reader.digest)


def take_objects(
    file: BinaryIO, passphrase: bytes, writer: ObjectWriter, on_image: Callable[[ImageFile], None]
) -> bytes:
    """Put all objects of an export that `check_export` has read into a store, and hand its images to `on_image`.
    Returns the digest of the whole. Raises NotAnExport, OSError.
    """
    reader = PieceReader(file, passphrase)
    for kind, content in reader.pieces():
        if kind == PieceKind.OBJECT:
            of_kind, _, whole = _object(content)
            writer.put(of_kind, whole)
        elif kind == PieceKind.IMAGE:
            on_image(_decoded(content, ImageFile))
    return reader.digest


def _object(content: bytes) -> tuple[Kind, bytes, bytes]:
    """Kind, digest and content of the object in a piece."""
    if len(content) < OBJECT_HEAD.size:
        raise NotAnExport("an object of it is too short")
    kind, codec, length, digest = OBJECT_HEAD.unpack_from(content)
    if kind not in set(Kind) - {Kind.MANIFEST} or codec not in (Codec.RAW, Codec.ZSTD):
        raise NotAnExport("an object of it is of no known kind")
    try:
        whole = decode(Codec(codec), content[OBJECT_HEAD.size :], length)
    except CannotDecode as error:
        raise NotAnExport(f"an object of it cannot be read: {error}") from error
    if digest_of(Kind(kind), whole) != digest:
        raise NotAnExport("an object of it has another content than it says")
    return Kind(kind), digest, whole


def _signer(reader: PieceReader, end: _End, ident: bytes) -> bytes:
    if end.digest != reader.digest:
        raise NotAnExport("its bytes are not those that were written")
    if not reader.header.signed:
        if end.signer or end.signature:
            raise NotAnExport("it has a signature, and says that it has none")
        return b""
    if not is_signature(end.signer, end.signature, ident, end.digest):
        raise NotAnExport("its signature is not that of its content: it was altered after it was signed")
    return end.signer


InPiece = TypeVar("InPiece")


def _decoded(content: bytes, kind: type[InPiece]) -> InPiece:
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotAnExport(f"a piece of it cannot be read: {error}") from error
