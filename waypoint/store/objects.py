"""Objects: the unit of storage. Their names, and how content becomes the payload that is written to a pack.

An object's *digest* is BLAKE3 of its content and the same on every machine, so that an image has the same id
everywhere. Its *address* is BLAKE3 of the digest, keyed with a key of the store: packs and index have addresses only,
so that nobody without the key can test whether a known file is in the store.

Sources: RFC 8878 (zstd); zstd(1), `--patch-from`.
"""

import threading
from enum import IntEnum
from typing import NamedTuple

import zstandard
from blake3 import blake3

Buffer = bytes | bytearray | memoryview

MAX_OBJECT_BYTES = 16 << 20
"""Of an object's content. Bounds the memory that a reader needs, whatever a payload claims."""
DIGEST_BYTES = 32

_LEVEL = 1
_DELTA_LEVEL = 3  # level 1 finds few repetitions in a base of a MiB
_WORTH = 0.97  # compression that saves less is left out, which makes reading faster
_MIN_COMPRESSED = 64
_SAMPLE_BYTES, _SAMPLES, _SOUGHT_EVERY = 32, 16, 4


class _Contexts(threading.local):
    """Of one thread: zstandard's objects must not be used by two at the same time."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


class Kind(IntEnum):
    """DATA: bytes of files. TREE: entries of a folder. LIST: references to the parts of something long. ROOT: a folder
    with all its content. Objects of different kinds never have the same digest.
    """

    DATA = 0
    TREE = 1
    LIST = 2
    ROOT = 3


_CONTEXTS = {kind: f"waypoint/store/1/{kind.name.lower()}" for kind in Kind}


def digest_of(kind: Kind, content: Buffer) -> bytes:
    return blake3(content, derive_key_context=_CONTEXTS[kind]).digest()


def address_of(digest: bytes, key: bytes) -> bytes:
    return blake3(digest, key=key).digest()


class Codec(IntEnum):
    """RAW: the content. ZSTD: one zstd frame. DELTA: one zstd frame with the content of another object, the base, as
    its dictionary. The base of a DELTA is never a DELTA.
    """

    RAW = 0
    ZSTD = 1
    DELTA = 2


class Encoded(NamedTuple):
    codec: Codec
    payload: Buffer


class CannotDecode(Exception):
    """A payload does not have the content that the directory of its pack describes."""


class CannotOpen(CannotDecode):
    """Sealed bytes were changed or moved to another place, or were sealed with another key."""


def encode(content: Buffer) -> Encoded:
    """Encode as ZSTD, or as RAW if that is not much longer."""
    if len(content) > _MIN_COMPRESSED:
        packed = _contexts.compressor.compress(content)
        if len(packed) < _WORTH * len(content):
            return Encoded(Codec.ZSTD, packed)
    return Encoded(Codec.RAW, content)


def encode_near(content: Buffer, base: bytes) -> Encoded:
    """Encode like `encode`, or as DELTA if that is shorter by a third: reading a DELTA means reading two objects."""
    if not _resembles(content, base):
        return encode(content)
    delta = _delta_compressor(base, len(content)).compress(content)
    if len(delta) <= len(content) // 16:  # so short that the alternative is not tried
        return Encoded(Codec.DELTA, delta)
    alone = encode(content)
    return Encoded(Codec.DELTA, delta) if len(delta) < len(alone.payload) * 2 // 3 else alone


def decode(codec: Codec, payload: bytes, length: int, base: bytes | None = None) -> bytes:
    """Return the content, of `length` bytes. `base`: for a DELTA. Raises CannotDecode."""
    if length > MAX_OBJECT_BYTES:
        raise CannotDecode(f"it would have {length} bytes")
    if codec == Codec.RAW:
        content = payload
    else:
        decompressor = _contexts.decompressor
        if base is not None:
            decompressor = zstandard.ZstdDecompressor(dict_data=_dictionary(base))
        try:
            # Without this check, the library allocates the size that the frame claims.
            if zstandard.frame_content_size(payload) != length:
                raise CannotDecode("its frame has another length")
            content = decompressor.decompress(payload, max_output_size=length, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CannotDecode(str(error)) from error
    if len(content) != length:
        raise CannotDecode(f"it has {len(content)} bytes instead of {length}")
    return content


def _resembles(content: Buffer, base: bytes) -> bool:
    """Whether samples of the content are in the base: at the same distance from the begin or the end, or, for a few of
    them, anywhere. Trying a DELTA takes ten times as long as this, and five times as long as `encode`.
    """
    end = len(content) - _SAMPLE_BYTES
    for number, place in enumerate(range(0, end, end // _SAMPLES + 1)):
        sample = content[place : place + _SAMPLE_BYTES]
        from_end = max(0, len(base) - len(content) + place)
        if any(sample == base[at : at + _SAMPLE_BYTES] for at in (place, from_end)):
            return True
        if number % _SOUGHT_EVERY == _SOUGHT_EVERY // 2 and bytes(sample) in base:
            return True
    return False


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _delta_compressor(base: bytes, length: int) -> zstandard.ZstdCompressor:
    window = max(10, (len(base) + length).bit_length())
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _DELTA_LEVEL, window_log=window, source_size=length, write_content_size=True
    )
    return zstandard.ZstdCompressor(dict_data=_dictionary(base), compression_params=parameters)
