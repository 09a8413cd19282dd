"""Packs: files of many objects (docs/format.md). A pack is written once, and its name is the digest of its bytes."""

import contextlib
import os
import struct
from typing import Annotated, NamedTuple

import msgspec
from blake3 import blake3

from waypoint.linux.storage import filesystem
from waypoint.linux.storage.files import write_all
from waypoint.store.objects import DIGEST_BYTES, MAX_OBJECT_BYTES, Codec, Kind

_HEADER = struct.Struct("<6sBB")
_TRAILER = struct.Struct(f"<II8s{DIGEST_BYTES}s")
_BEGIN, _END = b"WPpack", b"WPends\r\n"
_VERSION, _PLAIN = 1, 0
HEADER_BYTES = _HEADER.size
_MAX_DIRECTORY_BYTES = 64 << 20
_BUFFER_BYTES = 1 << 20

Address = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


class PackRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One object of a pack, in its directory. `stored`, `length`: bytes of the payload and of the content. `base`: the
    address of the object that a DELTA needs.
    """

    address: Address
    kind: int
    codec: int
    stored: int
    length: int
    base: Address | None = None


class Directory(NamedTuple):
    """The directory of a pack. `digest`: of all bytes before it, and the pack's name."""

    rows: list[PackRow]
    size: int
    digest: bytes


class BadPack(Exception):
    """A file is no complete pack of this format."""


class PackWriter:
    """Writes a pack to the new file `path`. End it with `finish` or `abandon`. `size`: bytes so far."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows: list[PackRow] = []
        self.size = HEADER_BYTES
        self._written = 0
        self._hasher = blake3()
        self._buffer = bytearray(_HEADER.pack(_BEGIN, _VERSION, _PLAIN))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def add(self, row: PackRow, payload: bytes) -> int:
        """Append an object; return its offset. After an OSError only `abandon` may be called."""
        offset = self.size
        self.rows.append(row)
        self._append(payload)
        return offset

    def finish(self) -> str:
        """Complete the pack and make the file durable; return the pack's name. The caller moves it to its place."""
        directory = msgspec.msgpack.encode(self.rows)
        self._append(directory)
        self._append(_TRAILER.pack(len(directory), len(self.rows), _END, b"")[:-DIGEST_BYTES])
        self._flush()
        digest = self._hasher.digest()
        write_all(self._fd, digest)
        self.size += len(digest)
        os.fsync(self._fd)
        self._close()
        return digest.hex()

    def abandon(self) -> None:
        """Remove the file. Does nothing after `finish`."""
        if self._fd >= 0:
            self._close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def read(self, offset: int, stored: int) -> bytes:
        """Read a payload that `add` has appended."""
        self._flush()
        return os.pread(self._fd, stored, offset)

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _append(self, content: bytes) -> None:
        self._buffer += content
        self.size += len(content)
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._hasher.update(self._buffer)
            write_all(self._fd, self._buffer)
            filesystem.begin_writing_out(self._fd, self._written, len(self._buffer))
            self._written += len(self._buffer)
            self._buffer.clear()


def read_directory(path: str) -> Directory:
    """Read a pack's directory, without its payloads. Raises BadPack, OSError."""
    with open(path, "rb", buffering=0) as file:
        return read_directory_at(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def read_directory_at(fd: int, place: int, size: int) -> Directory:
    """Read the directory of the pack that is `size` bytes of the file, from `place` on."""
    if size < HEADER_BYTES + _TRAILER.size:
        raise BadPack(f"it has only {size} bytes")
    begin, version, cipher = _HEADER.unpack(os.pread(fd, HEADER_BYTES, place))
    length, count, end, digest = _TRAILER.unpack(os.pread(fd, _TRAILER.size, place + size - _TRAILER.size))
    if begin != _BEGIN or end != _END:
        raise BadPack("it has no begin or no end of a pack")
    if (version, cipher) != (_VERSION, _PLAIN):
        raise BadPack(f"its format is {version}.{cipher}, which this version of Waypoint cannot read")
    start = size - _TRAILER.size - length
    if length > _MAX_DIRECTORY_BYTES or start < HEADER_BYTES:
        raise BadPack(f"its directory would have {length} bytes")
    try:
        rows = msgspec.msgpack.decode(os.pread(fd, length, place + start), type=list[PackRow])
    except msgspec.MsgspecError as error:
        raise BadPack(f"its directory cannot be read: {error}") from error
    for row in rows:
        _check(row)
    if len(rows) != count or HEADER_BYTES + sum(row.stored for row in rows) != start:
        raise BadPack("its directory does not fit its payloads")
    return Directory(rows, size, digest)


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
