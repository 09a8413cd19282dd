"""The records that a parcel consists of (docs/protocol.md, section 2): files and folders as one stream of bytes.

A parcel has one thing in it: a file, a link, or a folder with all in it, depth first. A receiver makes names, and no
paths: a name that could lead elsewhere is refused here.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

PIECE_BYTES = 1 << 18
"""Content in one record."""
MOST_BYTES = 1 << 20
"""Of one record. The kernel takes names of 255 bytes and, of one attribute, 64 KiB."""
MOST_DEEP = 250
"""Folders within each other. Both sides have two descriptors open for each."""
MOST_TOLD = 1000
"""Of what was left out, so much is kept to be told."""
MOST_NUMBERED = 100_000
"""Files with several names in one parcel: both sides keep something of each, to its end."""
MOST_XATTR_BYTES = MOST_BYTES - (1 << 16)
"""What the attributes of an entry take of its record: the rest is for its name and target."""
_MOST_WORDS = 4096
"""Characters about one of these."""
_HEAD_BYTES = 5
_PLAIN = bytes(one for one in range(0x20, 0x7F) if one not in b'"\\')
_SPELT_BYTES = 6  # what JSON takes for another byte
_NAME_MAX = 255


Inode = tuple[int, int]
"""A device and the number of an inode there (st_dev, st_ino)."""


class BadParcel(ValueError):
    """The bytes are no parcel, or one that nobody should unpack."""


class ParcelItem(NamedTuple):
    """`kind`: `file` (content follows), `folder` (entries follow), `link` to `target`, or `again`: one more name of the
    file that had this `number`. `name`: "" only of the first, if it is all that is in a folder, which has no name.
    `mtime`: in nanoseconds. `xattrs`: names and values. `number`: of a file with several names; else 0.
    """

    name: str
    kind: str
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    target: str = ""
    number: int = 0


class Content(NamedTuple):
    """Content of the file, which has a hole where it has no piece."""

    offset: int
    content: bytes


class FileEnd(NamedTuple):
    size: int


class FolderEnd(NamedTuple):
    pass


class Omitted(NamedTuple):
    """In words, what the sender has left out, and why. `is_idle`: it has no content of its own, or is not the user's
    (the receiver is not told that).
    """

    path: str
    why: str
    is_idle: bool = False


class ParcelEnd(NamedTuple):
    pass


Packed = ParcelItem | Content | FileEnd | FolderEnd | Omitted | ParcelEnd


def encode(record: Packed) -> bytes:
    """The record as bytes. Raises BadParcel if it is too long."""
    match record:
        case ParcelItem():
            xattrs = [[_text(name), _text(value)] for name, value in record.xattrs]
            name, target = (_text(text.encode(errors="surrogateescape")) for text in (record.name, record.target))
            fields = [name, record.kind, record.mode, record.uid, record.gid, record.mtime, xattrs, target]
            return _framed(b"E", json.dumps([*fields, record.number]).encode())
        case Content():
            return _framed(b"D", record.offset.to_bytes(8, "big") + record.content)
        case FileEnd():
            return _framed(b"F", record.size.to_bytes(8, "big"))
        case FolderEnd():
            return _framed(b"U", b"")
        case Omitted():
            return _framed(b"L", json.dumps([record.path, record.why]).encode())
        case _:
            return _framed(b"Z", b"")


def spelt_bytes(value: bytes) -> int:
    """How many bytes `value` takes in the record of an entry, at most."""
    return len(value) + (_SPELT_BYTES - 1) * len(value.translate(None, _PLAIN))


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _framed(kind: bytes, payload: bytes) -> bytes:
    if len(payload) > MOST_BYTES:
        raise BadParcel(f"a record of {len(payload)} bytes")
    return kind + len(payload).to_bytes(4, "big") + payload


class Decoder:
    """Makes records of the bytes of parcels, one after the other, which may come in pieces of any size."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: "bytes | memoryview") -> Iterator[Packed]:
        """The records that are whole with `data`. Raises BadParcel."""
        self._bytes += data
        at = 0
        try:
            while len(self._bytes) - at >= _HEAD_BYTES:
                length = int.from_bytes(self._bytes[at + 1 : at + _HEAD_BYTES], "big")
                if length > MOST_BYTES:
                    raise BadParcel(f"a record of {length} bytes")
                end = at + _HEAD_BYTES + length
                if len(self._bytes) < end:
                    break
                kind, payload = self._bytes[at : at + 1], bytes(self._bytes[at + _HEAD_BYTES : end])
                at = end
                yield _decoded(bytes(kind), payload)
        finally:
            del self._bytes[:at]

    def check_end(self) -> None:
        """Raise BadParcel if a record has begun that did not end."""
        if self._bytes:
            raise BadParcel("it breaks off")


def records_of(pieces: Iterable[bytes]) -> Iterator[Packed]:
    """The records of parcels whose bytes come in pieces of any size. Raises BadParcel, and what the pieces raise."""
    decoder = Decoder()
    for piece in pieces:
        yield from decoder.feed(piece)
    decoder.check_end()


def _decoded(kind: bytes, payload: bytes) -> Packed:
    match kind:
        case b"E":
            return _entry(payload)
        case b"D" if len(payload) > 8:
            return Content(int.from_bytes(payload[:8], "big"), payload[8:])
        case b"F" if len(payload) == 8:
            return FileEnd(int.from_bytes(payload, "big"))
        case b"U" if not payload:
            return FolderEnd()
        case b"L":
            path, why = _loaded(payload, 2)
            return Omitted(str(path)[:_MOST_WORDS], str(why)[:_MOST_WORDS])
        case b"Z" if not payload:
            return ParcelEnd()
    raise BadParcel(f"a record of kind {kind!r} with {len(payload)} bytes")


def _entry(payload: bytes) -> ParcelItem:
    name, kind, *numbers, xattrs, target, number = _loaded(payload, 9)
    if kind not in ("file", "folder", "link", "again"):
        raise BadParcel(f"an entry of kind {kind!r}")
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in (*numbers, number)):
        raise BadParcel("an entry with other values than numbers")
    mode, uid, gid, mtime = numbers
    if not all(0 <= one < 1 << 32 for one in (uid, gid)) or abs(mtime) >= 1 << 63:
        raise BadParcel("an entry with numbers that no file has")
    try:
        pairs = tuple((str(one).encode("latin-1"), str(value).encode("latin-1")) for one, value in xattrs)
        path, leads = (str(text).encode("latin-1").decode(errors="surrogateescape") for text in (name, target))
    except (TypeError, ValueError) as error:
        raise BadParcel(f"an entry that is none: {error}") from error
    if len(path.encode(errors="surrogateescape")) > _NAME_MAX or path in (".", "..") or {"/", "\0"} & {*path}:
        raise BadParcel(f"the name {path[:_NAME_MAX]!r}")
    return ParcelItem(path, str(kind), mode & 0o7777, uid, gid, mtime, pairs, leads, number)


def _loaded(payload: bytes, length: int) -> list[Any]:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise BadParcel(f"a record that is no JSON: {error}") from error
    if not isinstance(found, list) or len(found) != length:
        raise BadParcel("a record with another number of values")
    return found
