"""How an object's content becomes the payload that is written: as it is, compressed, or as what differs from another.

Sources: zstd(1), RFC 8878; the manual of zstd on `--patch-from`: what is compressed may refer to a text that came
before it and that both sides have.
"""

from enum import IntEnum
from typing import NamedTuple

import zstandard

MOST_BYTES = 16 << 20
"""Of an object's content. A reader takes no more memory than that for one, whatever a payload claims to become."""

_LEVEL = 1
_DELTA_LEVEL = 3  # level 1 finds little of a text of a mebibyte again
_WORTH = 0.97  # what compression must bring, or reading need not pay for it
_TINY = 64
_compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
_decompressor = zstandard.ZstdDecompressor()


class Codec(IntEnum):
    """RAW: the content. ZSTD: one zstd frame. DELTA: one zstd frame that begins where another object's content, the
    base, ends: it may copy from the base. A base is never a DELTA itself.
    """

    RAW = 0
    ZSTD = 1
    DELTA = 2


class Encoded(NamedTuple):
    """A payload, before it is sealed."""

    codec: Codec
    payload: bytes


class CannotDecode(Exception):
    """A payload does not become content of the length that is on record."""


def encode(content: bytes) -> Encoded:
    """The shorter of RAW and ZSTD."""
    if len(content) > _TINY:
        packed = _compressor.compress(content)
        if len(packed) < _WORTH * len(content):
            return Encoded(Codec.ZSTD, packed)
    return Encoded(Codec.RAW, content)


def encode_near(content: bytes, base: bytes) -> Encoded:
    """As `encode`, or a DELTA from `base` if that is shorter by a third: it takes a second read. Of two that are longer
    than a mebibyte, little is found that repeats.
    """
    patch = _delta_compressor(base, len(content)).compress(content)
    if len(patch) <= len(content) // 16:  # so short that the other need not be tried
        return Encoded(Codec.DELTA, patch)
    alone = encode(content)
    return Encoded(Codec.DELTA, patch) if len(patch) < len(alone.payload) * 2 // 3 else alone


def decode(codec: Codec, payload: bytes, length: int, base: bytes | None = None) -> bytes:
    """The content, of `length` bytes. `base`: the base's content, for a DELTA. Raises CannotDecode."""
    if length > MOST_BYTES:
        raise CannotDecode(f"it would have {length} bytes")
    if codec == Codec.RAW:
        content = payload
    else:
        reader = _decompressor if base is None else zstandard.ZstdDecompressor(dict_data=_prefix(base))
        try:
            if zstandard.frame_content_size(payload) != length:
                raise CannotDecode("its frame tells another length")
            content = reader.decompress(payload, max_output_size=length, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CannotDecode(str(error)) from error
    if len(content) != length:
        raise CannotDecode(f"it has {len(content)} bytes")
    return content


def _prefix(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _delta_compressor(base: bytes, length: int) -> zstandard.ZstdCompressor:
    window = max(10, (len(base) + length).bit_length())
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _DELTA_LEVEL, window_log=window, source_size=length, write_content_size=True
    )
    return zstandard.ZstdCompressor(dict_data=_prefix(base), compression_params=parameters)
