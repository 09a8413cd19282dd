"""The bytes of an export: a header, then pieces, the last of which tells the digest of all before (docs/format.md)."""

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import BinaryIO, NamedTuple

from blake3 import blake3

from waypoint.store.packs.ciphers import AES_256_GCM, PLAIN, SALT_BYTES, Cipher, WrongBytes, cipher_for
from waypoint.store.packs.codecs import MOST_BYTES
from waypoint.store.packs.digests import DIGEST_BYTES

_HEADER = struct.Struct(f"<6sBBBIII{SALT_BYTES}s")
_BEGIN, VERSION = b"WPexpo", 1
_LENGTH = struct.Struct("<I")
OBJECT_HEAD = struct.Struct(f"<BBI{DIGEST_BYTES}s")
"""Of a piece with an object: kind, codec, length of the content, digest; the payload is behind it."""
MOST_PIECE = MOST_BYTES + (1 << 16)
"""Of a piece's payload. A reader takes no more memory than that for one, whatever a file claims."""
MOST_OBJECTS = 1 << 21
"""They take a reader about 150 bytes of memory each."""
MOST_IMAGE_BYTES = 64 << 20
"""Of all manifests of an export, and what is told of the images besides: a reader keeps them in memory."""
_MOST_SCRYPT = 128 << 20
_CONTEXT = "waypoint/export/1"


class PieceKind(IntEnum):
    """What a piece is: its first byte."""

    HEAD = 0
    OBJECT = 1
    IMAGE = 2
    END = 3


class NotAnExport(Exception):
    """A file is no whole export of this format, in words."""


class WrongPassphrase(Exception):
    """An encrypted export cannot be opened: it needs a passphrase, or another one, in words."""


class ExportHeader(NamedTuple):
    """The first bytes. `n`, `r`, `p`: how the passphrase becomes a key (RFC 7914); 0 in one that is not encrypted."""

    cipher: int
    signed: bool
    n: int
    r: int
    p: int
    salt: bytes

    def packed(self) -> bytes:
        return _HEADER.pack(_BEGIN, VERSION, self.cipher, self.signed, self.n, self.r, self.p, self.salt)

    def opened(self, passphrase: bytes) -> Cipher:
        """The cipher of the pieces. Takes 128 times `n` times `r` bytes of memory."""
        if self.cipher == PLAIN:
            return cipher_for(PLAIN, b"", self.salt)
        key = hashlib.scrypt(
            passphrase, salt=self.salt, n=self.n, r=self.r, p=self.p, maxmem=2 * _MOST_SCRYPT, dklen=32
        )
        return cipher_for(AES_256_GCM, key, self.salt)


def new_header(*, encrypted: bool, signed: bool) -> ExportHeader:
    """Of a new export."""
    n, r, p = (1 << 15, 8, 1) if encrypted else (0, 0, 0)
    return ExportHeader(AES_256_GCM if encrypted else PLAIN, signed, n, r, p, os.urandom(SALT_BYTES))


def read_header(file: BinaryIO) -> ExportHeader:
    """Raises NotAnExport, OSError."""
    content = file.read(_HEADER.size)
    if not content.startswith(_BEGIN):
        raise NotAnExport("it does not begin as an export" if content else "it is empty")
    if len(content) < _HEADER.size:
        raise NotAnExport("it ends in its header: it was cut off")
    _, version, cipher, signed, n, r, p, salt = _HEADER.unpack(content)
    if version != VERSION or cipher not in (PLAIN, AES_256_GCM) or signed > 1:
        raise NotAnExport(f"it is of format {version}, cipher {cipher}, which this version of Waypoint does not know")
    if cipher == PLAIN:
        is_sound = (n, r, p) == (0, 0, 0)
    else:
        is_sound = n > 1 and n & (n - 1) == 0 and r > 0 and 128 * n * r <= _MOST_SCRYPT and 0 < p <= 16
    if not is_sound:
        raise NotAnExport("it asks for more work than any passphrase needs")
    return ExportHeader(cipher, bool(signed), n, r, p, salt)


class PieceWriter:
    """Writes an export to `out`, which takes bytes in order."""

    def __init__(self, out: Callable[[bytes], None], header: ExportHeader, passphrase: bytes) -> None:
        self._out = out
        self._about = header.packed()
        self._cipher = header.opened(passphrase)
        self._hasher = blake3(derive_key_context=_CONTEXT)
        self._number = 0
        self.size = 0
        self._write(self._about)

    def put(self, kind: PieceKind, content: bytes) -> None:
        """`content`: what is sealed, behind the byte for its kind, in at most MOST_PIECE bytes."""
        sealed = self._cipher.seal(self._number, bytes([kind]) + content, self._about)
        self._number += 1
        self._write(_LENGTH.pack(len(sealed)) + sealed)

    def digest(self) -> bytes:
        """Of all bytes so far."""
        return self._hasher.digest()

    def _write(self, content: bytes) -> None:
        self._hasher.update(content)
        self.size += len(content)
        self._out(content)


class PieceReader:
    """Reads an export from the start of a file. `header`: what it begins with."""

    def __init__(self, file: BinaryIO, passphrase: bytes) -> None:
        """Raises NotAnExport, WrongPassphrase if it needs one, OSError."""
        self._file = file
        self.header = read_header(file)
        if self.header.cipher != PLAIN and not passphrase:
            raise WrongPassphrase("it is encrypted, and there is no passphrase")
        self._about = self.header.packed()
        self._cipher = self.header.opened(passphrase)
        self._hasher = blake3(self._about, derive_key_context=_CONTEXT)
        self.digest = b""
        """Of all bytes before the last piece that was read."""

    def pieces(self) -> Iterator[tuple[PieceKind, bytes]]:
        """Each piece, to the end of the file; the last one is the END, and nothing else is. Raises NotAnExport,
        WrongPassphrase, OSError.
        """
        number = 0
        while True:
            length = self._file.read(_LENGTH.size)
            if len(length) < _LENGTH.size:
                raise NotAnExport("it ends before its end: it was cut off")
            (size,) = _LENGTH.unpack(length)
            if not 0 < size <= MOST_PIECE:
                raise NotAnExport(f"a piece of it would have {size} bytes")
            sealed = self._file.read(size)
            if len(sealed) < size:
                raise NotAnExport("it ends before its end: it was cut off")
            kind, content = self._opened(number, sealed)
            self.digest = self._hasher.digest() if kind == PieceKind.END else b""
            self._hasher.update(length)
            self._hasher.update(sealed)
            number += 1
            yield kind, content
            if kind == PieceKind.END:
                break
        if self._file.read(1):
            raise NotAnExport("there is something behind its end")

    def _opened(self, number: int, sealed: bytes) -> tuple[PieceKind, bytes]:
        try:
            content = self._cipher.open(number, sealed, self._about)
        except WrongBytes as error:
            if number == 0:
                raise WrongPassphrase("the passphrase is another one, or its first bytes were changed") from error
            raise NotAnExport("its bytes are not those that were written") from error
        if not content or content[0] not in set(PieceKind):
            raise NotAnExport("a piece of it is of no known kind")
        return PieceKind(content[0]), content[1:]
