"""The bytes of a pack: a header, payloads end to end, a directory that tells what they are, and a trailer."""

import os
import struct
from typing import Annotated, NamedTuple

import msgspec
from blake3 import blake3

from waypoint.store.packs.ciphers import AES_256_GCM, PLAIN, SALT_BYTES, Cipher, cipher_for
from waypoint.store.packs.codecs import MOST_BYTES, Codec
from waypoint.store.packs.digests import DIGEST_BYTES, Kind

_HEADER = struct.Struct(f"<6sBB{SALT_BYTES}s")
_TRAILER = struct.Struct(f"<II8s{DIGEST_BYTES}s")
_BEGIN, _END = b"WPpack", b"WPends\r\n"
VERSION = 1
HEADER_BYTES = _HEADER.size
MOST_DIRECTORY = 64 << 20
MOST_PAYLOAD = MOST_BYTES + 64
"""What a payload may be longer than its content: by a tag, and no more, as what does not get shorter stays as it is."""
_ABOUT_DIRECTORY = b"directory"


Address = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


class PackRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One object in a pack. `stored`: the payload's length in bytes. `length`: the content's. `base`: the address of
    the object that a DELTA begins from.
    """

    address: Address
    kind: int
    codec: int
    stored: int
    length: int
    base: Address | None = None

    @property
    def about(self) -> bytes:
        """What a payload is bound to when it is sealed."""
        return b"%s%c%c%d" % (self.address, self.kind, self.codec, self.length) + (self.base or b"")


class NotAPack(Exception):
    """A file is no whole pack of this format, in words."""


class Trailer(NamedTuple):
    """`directory`: its length in bytes. `objects`: how many. `digest`: of all bytes before it, the pack's name."""

    directory: int
    objects: int
    digest: bytes


def header(cipher: int, salt: bytes) -> bytes:
    """The first bytes of a pack."""
    return _HEADER.pack(_BEGIN, VERSION, cipher, salt)


def read_header(content: bytes, key: bytes) -> Cipher:
    """The cipher of the pack that begins with `content`. Raises NotAPack; WrongBytes if the key does not fit."""
    if len(content) < HEADER_BYTES:
        raise NotAPack("it ends in its header")
    begin, version, cipher, salt = _HEADER.unpack_from(content)
    if begin != _BEGIN:
        raise NotAPack("it does not begin as a pack")
    if version != VERSION or cipher not in (PLAIN, AES_256_GCM):
        raise NotAPack(f"it is of format {version}, cipher {cipher}, of which this version of Waypoint knows nothing")
    if key and cipher == PLAIN:
        raise NotAPack("it is not encrypted, and all of this store is")
    return cipher_for(cipher, key, salt)


def seal_directory(rows: list[PackRow], cipher: Cipher) -> bytes:
    return cipher.seal(len(rows), msgspec.msgpack.encode(rows), _ABOUT_DIRECTORY)


def trailer(directory: int, count: int) -> bytes:
    """The last bytes of a pack, without the digest."""
    return _TRAILER.pack(directory, count, _END, bytes(DIGEST_BYTES))[:-DIGEST_BYTES]


def read_directory(fd: int, key: bytes) -> tuple[list[PackRow], Trailer]:
    """The rows of the pack that is open as `fd`. Does not look at the payloads.

    Raises NotAPack, WrongBytes, OSError.
    """
    size = os.fstat(fd).st_size
    end = _read_trailer(fd, size)
    start = size - _TRAILER.size - end.directory
    if end.directory > MOST_DIRECTORY or start < HEADER_BYTES:
        raise NotAPack(f"its directory would have {end.directory} bytes")
    cipher = read_header(os.pread(fd, HEADER_BYTES, 0), key)
    sealed = os.pread(fd, end.directory, start)
    try:
        rows = msgspec.msgpack.decode(cipher.open(end.objects, sealed, _ABOUT_DIRECTORY), type=list[PackRow])
    except msgspec.MsgspecError as error:
        raise NotAPack(f"its directory cannot be read: {error}") from error
    if len(rows) != end.objects or HEADER_BYTES + sum(row.stored for row in rows) != start:
        raise NotAPack("its directory does not fit to its payloads")
    for row in rows:
        _check(row)
    return rows, end


def digest_of_pack(fd: int) -> bytes:
    """Of the bytes before the digest in the trailer. Reads the whole file."""
    left, hasher, place = os.fstat(fd).st_size - DIGEST_BYTES, blake3(), 0
    while left > 0:
        piece = os.pread(fd, min(left, 1 << 20), place)
        if not piece:
            break
        hasher.update(piece)
        left, place = left - len(piece), place + len(piece)
    return hasher.digest()


def _read_trailer(fd: int, size: int) -> Trailer:
    if size < HEADER_BYTES + _TRAILER.size:
        raise NotAPack(f"it has {size} bytes")
    directory, count, end, digest = _TRAILER.unpack(os.pread(fd, _TRAILER.size, size - _TRAILER.size))
    if end != _END:
        raise NotAPack("it does not end as a pack")
    return Trailer(directory, count, digest)


def _check(row: PackRow) -> None:
    """Raise NotAPack unless the row tells what can be. What it claims is checked again when the object is read."""
    if row.kind not in set(Kind) or row.codec not in set(Codec):
        raise NotAPack("its directory names an object of no known kind")
    if not 0 <= row.length <= MOST_BYTES or not 0 <= row.stored <= MOST_PAYLOAD:
        raise NotAPack("its directory names an object that is too long")
    if (row.codec == Codec.DELTA) != (row.base is not None):
        raise NotAPack("its directory names a base that is none")
