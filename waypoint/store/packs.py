"""Packs: files of many objects (docs/format.md). A pack is written once, and its name is the digest of its bytes.

In an encrypted store all payloads are sealed, and no plain pack is accepted: somebody could have put it there.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from blake3 import blake3

from waypoint.linux.storage import filesystem
from waypoint.linux.storage.files import write_all
from waypoint.store.config import SALT_BYTES
from waypoint.store.objects import DIGEST_BYTES, MAX_OBJECT_BYTES, Buffer, Codec, Kind

if TYPE_CHECKING:
    from waypoint.store.encryption import MasterKey, Seal

_HEADER = struct.Struct("<6sBB")
_TRAILER = struct.Struct(f"<II8s{DIGEST_BYTES}s")
_BEGIN, _END = b"WPpack", b"WPends\r\n"
_VERSION, _PLAIN, _AES_256_GCM = 1, 0, 1
_SEALED_MORE = 16  # bytes by which a sealed payload is longer
_MAX_DIRECTORY_BYTES = 64 << 20
_BUFFER_BYTES = 1 << 20
_BUFFERED = 32 << 10  # longer payloads are not copied to the buffer

Address = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


class PackRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One object of a pack, in its directory. `stored`, `length`: bytes of the payload, before it is sealed, and of the
    content. `base`: the address of the object that a DELTA needs.
    """

    address: Address
    kind: int
    codec: int
    stored: int
    length: int
    base: Address | None = None


class Directory(NamedTuple):
    """The directory of a pack. `digest`: of all bytes before it, and the pack's name. `is_sealed`: encrypted."""

    rows: list[PackRow]
    size: int
    digest: bytes
    is_sealed: bool

    def placed(self) -> Iterator[tuple[PackRow, int]]:
        """Each object with the offset of its payload."""
        offset, more = _sizes(is_sealed=self.is_sealed)
        for row in self.rows:
            yield row, offset
            offset += row.stored + more


NOT_SEALED = "it is not encrypted, and the store is: it was not written by this store"


class BadPack(Exception):
    """A file is no complete pack of this format."""


class PackWriter:
    """Writes a pack to the new file `path`. End it with `finish` or `abandon`. `size`: bytes so far. `seal`: seals the
    payloads, and belongs to this pack alone.
    """

    def __init__(self, path: str, seal: "Seal | None" = None) -> None:
        self.path = path
        self._rows: list[PackRow] = []
        self._seal = seal
        self._written = self._begun = 0
        self._hasher = blake3()
        self._buffer = bytearray(_HEADER.pack(_BEGIN, _VERSION, _PLAIN if seal is None else _AES_256_GCM))
        self._buffer += seal.salt if seal is not None else b""
        self.size = len(self._buffer)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def add(self, row: PackRow, payload: Buffer) -> int:
        """Append an object; return its offset. After an OSError only `abandon` may be called."""
        offset = self.size
        self._rows.append(row)
        self._append(payload if self._seal is None else self._seal.seal(payload, offset, about(row)))
        return offset

    def finish(self) -> Directory:
        """Complete the pack and make the file durable. The caller moves it to its place."""
        directory = msgspec.msgpack.encode(self._rows)
        self._append(directory)
        self._append(_TRAILER.pack(len(directory), len(self._rows), _END, b"")[:-DIGEST_BYTES])
        self._flush()
        digest = self._hasher.digest()
        write_all(self._fd, digest)
        self.size += len(digest)
        os.fsync(self._fd)
        self._close()
        return Directory(self._rows, self.size, digest, self._seal is not None)

    def abandon(self) -> None:
        """Remove the file. Does nothing after `finish`."""
        if self._fd >= 0:
            self._close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def opened(self) -> "OpenPack":
        """The pack for reading what `add` has appended."""
        self._flush()
        return OpenPack(self._fd, self._seal)

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _append(self, content: Buffer) -> None:
        self.size += len(content)
        if len(content) < _BUFFERED:
            self._buffer += content
            if len(self._buffer) >= _BUFFER_BYTES:
                self._flush()
        else:
            self._flush()
            self._write(content)

    def _flush(self) -> None:
        if self._buffer:
            self._write(self._buffer)
            self._buffer.clear()

    def _write(self, content: Buffer) -> None:
        self._hasher.update(content)
        write_all(self._fd, content)
        self._written += len(content)
        if self._written - self._begun >= _BUFFER_BYTES:
            filesystem.begin_writing_out(self._fd, self._begun, self._written - self._begun)
            self._begun = self._written


class OpenPack(NamedTuple):
    """A pack for reading. `seal`: None if it is not encrypted."""

    fd: int
    seal: "Seal | None"

    def read(self, row: PackRow, offset: int) -> bytes:
        """Read the payload at `offset`; shorter than `row.stored` if the file ends before. Raises OSError, CannotOpen
        if a sealed payload is not that of this row.
        """
        if self.seal is None:
            return os.pread(self.fd, row.stored, offset)
        return self.seal.open(os.pread(self.fd, row.stored + _SEALED_MORE, offset), offset, about(row))


def open_pack(path: str, master: "MasterKey | None") -> OpenPack:
    """Open a pack; the caller closes its `fd`. `master`: the key of an encrypted store. Raises BadPack if the pack is
    not as encrypted as the store; OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if master is None:
            return OpenPack(fd, None)
        header = os.pread(fd, _HEADER.size + SALT_BYTES, 0)
        if header[: _HEADER.size] != _HEADER.pack(_BEGIN, _VERSION, _AES_256_GCM):
            raise BadPack(NOT_SEALED)
        return OpenPack(fd, master.seal(header[_HEADER.size :]))
    except BaseException:
        os.close(fd)
        raise


def _sizes(*, is_sealed: bool) -> tuple[int, int]:
    """The bytes of the header, and those by which a payload is longer than in its row."""
    return (_HEADER.size + SALT_BYTES, _SEALED_MORE) if is_sealed else (_HEADER.size, 0)


def about(row: PackRow) -> bytes:
    """What a sealed payload belongs to."""
    return msgspec.msgpack.encode(row)


def read_directory(path: str, *, is_sealed: bool) -> Directory:
    """Read a pack's directory, without its payloads. Raises BadPack, also if the pack is not as encrypted as it should
    be; OSError.
    """
    with open(path, "rb", buffering=0) as file:
        return read_directory_at(file.fileno(), 0, os.fstat(file.fileno()).st_size, is_sealed=is_sealed)


def read_directory_at(fd: int, place: int, size: int, *, is_sealed: bool) -> Directory:
    """Read the directory of the pack that is `size` bytes of the file, from `place` on."""
    if size < _HEADER.size + _TRAILER.size:
        raise BadPack(f"it has only {size} bytes")
    begin, version, cipher = _HEADER.unpack(os.pread(fd, _HEADER.size, place))
    length, count, end, digest = _TRAILER.unpack(os.pread(fd, _TRAILER.size, place + size - _TRAILER.size))
    if begin != _BEGIN or end != _END:
        raise BadPack("it has no begin or no end of a pack")
    if version != _VERSION or cipher not in (_PLAIN, _AES_256_GCM):
        raise BadPack(f"its format is {version}.{cipher}, which this version of Waypoint cannot read")
    if is_sealed != (cipher == _AES_256_GCM):
        raise BadPack(NOT_SEALED if is_sealed else "it is encrypted, and the store is not")
    start = size - _TRAILER.size - length
    if length > _MAX_DIRECTORY_BYTES or start < _HEADER.size:
        raise BadPack(f"its directory would have {length} bytes")
    try:
        rows = msgspec.msgpack.decode(os.pread(fd, length, place + start), type=list[PackRow])
    except msgspec.MsgspecError as error:
        raise BadPack(f"its directory cannot be read: {error}") from error
    for row in rows:
        _check(row)
    header, more = _sizes(is_sealed=is_sealed)
    if len(rows) != count or header + sum(row.stored + more for row in rows) != start:
        raise BadPack("its directory does not fit its payloads")
    return Directory(rows, size, digest, is_sealed)


def compute_digest(path: str) -> bytes:
    """Compute the digest that the last bytes of the pack should be. Reads the whole file."""
    hasher = blake3()
    with open(path, "rb", buffering=0) as file:
        left = os.fstat(file.fileno()).st_size - DIGEST_BYTES
        while left > 0 and (piece := file.read(min(left, _BUFFER_BYTES))):
            hasher.update(piece)
            left -= len(piece)
    return hasher.digest()


def _check(row: PackRow) -> None:
    """Raise BadPack for impossible values. Whether they are true shows when the object is read."""
    if row.kind not in set(Kind) or row.codec not in set(Codec):
        raise BadPack("its directory has an object of an unknown kind")
    # A payload is never longer than its content: such content is stored RAW.
    if not 0 <= row.length <= MAX_OBJECT_BYTES or not 0 <= row.stored <= row.length:
        raise BadPack("its directory has an object that is too long")
    if (row.codec == Codec.DELTA) != (row.base is not None):
        raise BadPack("its directory has a base for an object that needs none, or lacks one")
