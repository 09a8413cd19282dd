"""OCI image layouts as one tar archive: `oci-layout`, `index.json`, and blobs named by their SHA-256.

Sources: the OCI image specification 1.1 (image-layout.md, manifest.md, descriptor.md); POSIX.1-2024, pax (ustar).
"""

import hashlib
import os
import re
import tarfile
from collections.abc import Callable
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from waypoint.linux.storage.files import write_all
from waypoint.model.errors import Failed, of_machine

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_MAX_MEMBERS = 1 << 16
_BLOCK = tarfile.BLOCKSIZE
_PIECE = 1 << 20
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_FOLDERS = ("blobs", "blobs/sha256")

Sha256 = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]


class Platform(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    os: str
    architecture: str
    variant: str = ""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A blob of the layout. `platform`: of an image."""

    media_type: str
    digest: Sha256
    size: Annotated[int, msgspec.Meta(ge=0)]
    platform: Platform | None = None
    annotations: dict[str, str] = {}


class OciManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    schema_version: int
    media_type: str = ""
    artifact_type: str = ""
    config: Descriptor
    layers: list[Descriptor]
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}


class OciIndex(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    schema_version: int
    media_type: str = ""
    manifests: list[Descriptor]
    annotations: dict[str, str] = {}


class BadLayout(Exception):
    """The file is no OCI image layout, or not a complete one."""


class LayoutWriter:
    """Writes a layout to the new regular file `fd`. `size`: bytes so far."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._written: set[str] = set()
        self.size = 0
        self._file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')

    def add(self, media_type: str, content: bytes, annotations: dict[str, str] | None = None) -> Descriptor:
        return self.stream(media_type, lambda write: write(content), annotations)

    def stream(
        self,
        media_type: str,
        produce: Callable[[Callable[[bytes], None]], object],
        annotations: dict[str, str] | None = None,
    ) -> Descriptor:
        """Add the blob that `produce` passes in pieces to the function that it gets."""
        header, hasher, start = self.size, hashlib.sha256(), self.size + _BLOCK
        self._write(bytes(_BLOCK))

        def write(piece: bytes) -> None:
            hasher.update(piece)
            self._write(piece)

        produce(write)
        size, digest = self.size - start, hasher.hexdigest()
        if digest in self._written:  # a member must not come twice
            os.ftruncate(self._fd, header)
            os.lseek(self._fd, header, os.SEEK_SET)
            self.size = header
        else:
            self._written.add(digest)
            self._write(bytes(-size % _BLOCK))
            os.pwrite(self._fd, _header(f"blobs/sha256/{digest}", size), header)
        return Descriptor(media_type=media_type, digest=f"sha256:{digest}", size=size, annotations=annotations or {})

    def finish(self, index: OciIndex) -> None:
        self._file("index.json", msgspec.json.encode(index))
        self._write(bytes(2 * _BLOCK))

    def _file(self, name: str, content: bytes) -> None:
        self._write(_header(name, len(content)) + content + bytes(-len(content) % _BLOCK))

    def _write(self, content: bytes) -> None:
        try:
            write_all(self._fd, content)
        except OSError as error:
            code = of_machine(error.errno)
            raise Failed("write", "the archive", error.strerror or "", "choose another disk", code=code) from error
        self.size += len(content)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.GNU_FORMAT)


class Extent(NamedTuple):
    """Where a member's content is in the file."""

    place: int
    size: int


class LayoutReader:
    """Reads a layout from a regular file of any origin. All methods raise BadLayout and OSError.

    Members that are no files of a layout, and members that come twice, are refused.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._members = _members(fd)

    def index(self) -> OciIndex:
        return decoded(self._content("index.json", 1 << 20), OciIndex, "index.json")

    def extent(self, one: Descriptor) -> Extent:
        """Where the blob is. Its digest is not checked."""
        found = self._members.get(f"blobs/{one.digest.replace(':', '/')}")
        if found is None or found.size != one.size:
            raise BadLayout(f"the blob {one.digest[7:23]} is missing or has another size than its descriptor")
        return found

    def check(self, one: Descriptor) -> None:
        """Read the whole blob, and compare its digest."""
        place, size = self.extent(one)
        hasher = hashlib.sha256()
        for start in range(place, place + size, _PIECE):
            hasher.update(os.pread(self.fd, min(_PIECE, place + size - start), start))
        if hasher.hexdigest() != one.digest[7:]:
            raise BadLayout(f"the blob {one.digest[7:23]} has another digest than its name")

    def read(self, one: Descriptor, max_bytes: int) -> bytes:
        if one.size > max_bytes:
            raise BadLayout(f"the blob {one.digest[7:23]} has {one.size} bytes; at most {max_bytes} are accepted")
        self.check(one)
        return os.pread(self.fd, one.size, self.extent(one).place)

    def manifest(self, one: Descriptor) -> OciManifest:
        return decoded(self.read(one, 4 << 20), OciManifest, "a manifest")

    def _content(self, name: str, max_bytes: int) -> bytes:
        if name not in self._members:
            raise BadLayout(f"{name} is missing")
        place, size = self._members[name]
        if size > max_bytes:
            raise BadLayout(f"{name} has {size} bytes")
        return os.pread(self.fd, size, place)


def _members(fd: int) -> dict[str, Extent]:
    found: dict[str, Extent] = {}
    place, end = 0, os.fstat(fd).st_size
    while (block := os.pread(fd, _BLOCK, place)) and block != bytes(_BLOCK):
        try:
            info = tarfile.TarInfo.frombuf(block, "ascii", "surrogateescape")
        except tarfile.HeaderError as error:
            raise BadLayout(f"it is no tar archive: {error}") from error
        place += _BLOCK
        name = info.name.removeprefix("./").rstrip("/")
        if info.type == tarfile.DIRTYPE and name in _FOLDERS:
            continue
        is_known = name in ("oci-layout", "index.json") or _BLOB.fullmatch(name) is not None
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not is_known:
            raise BadLayout(f"it has a member that is no file of an image layout: {info.name[:120]!r}")
        if name in found or len(found) >= _MAX_MEMBERS:
            raise BadLayout(f"it has {name} twice" if name in found else "it has too many members")
        if not 0 <= info.size <= end - place:
            raise BadLayout(f"it ends within {name}: it is not complete")
        found[name] = Extent(place, info.size)
        place += info.size + -info.size % _BLOCK
    if not block:
        raise BadLayout("it is empty" if not end else "its end is missing: it is not complete")
    return found


Decoded = TypeVar("Decoded")


def decoded(content: bytes, kind: type[Decoded], name: str) -> Decoded:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadLayout(f"{name} cannot be read: {error}") from error
