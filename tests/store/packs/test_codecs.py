"""Content becomes a payload and comes back, whatever it is; what is no payload is refused and takes no memory."""

import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from waypoint.store.packs.codecs import MOST_BYTES, CannotDecode, Codec, decode, encode, encode_near

CONTENTS = st.one_of(
    st.binary(max_size=3000),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=40), st.integers(1, 5000)),
    st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(), st.integers(0, 200_000)),
)


@given(content=CONTENTS)
def test_whatever_is_encoded_comes_back(content: bytes) -> None:
    codec, payload = encode(content)
    assert decode(codec, payload, len(content)) == content
    assert len(payload) <= len(content)


@given(base=CONTENTS, content=CONTENTS, cut=st.integers(0, 3000))
def test_so_does_what_is_told_from_a_base(base: bytes, content: bytes, cut: int) -> None:
    near = base[:cut] + content + base[cut:]
    codec, payload = encode_near(near, base)
    assert decode(codec, payload, len(near), base if codec == Codec.DELTA else None) == near
    assert len(payload) <= len(near)


@pytest.mark.parametrize("size", [4096, 65536, 1 << 20])
def test_a_page_that_differs_costs_a_page(size: int) -> None:
    base = random.Random(1).randbytes(size)
    near = base[: size // 2] + random.Random(2).randbytes(512) + base[size // 2 + 512 :]
    codec, payload = encode_near(near, base)
    assert codec == Codec.DELTA
    assert len(payload) < 512 + 64 + size // 500


@given(base=st.one_of(st.none(), st.binary(max_size=200)), payload=st.binary(max_size=200), length=st.integers(0, 300))
def test_what_is_no_payload_is_refused(base: bytes | None, payload: bytes, length: int) -> None:
    for codec in (Codec.ZSTD, Codec.DELTA):
        with pytest.raises(CannotDecode):
            decode(codec, payload, length, base)


def test_a_payload_that_would_become_large_is_refused() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(MOST_BYTES + 1))
    for length in (MOST_BYTES + 1, MOST_BYTES, 10):
        with pytest.raises(CannotDecode):
            decode(Codec.ZSTD, bomb, length)


def test_a_payload_is_no_longer_than_its_content_even_if_nothing_repeats() -> None:
    content = random.Random(3).randbytes(100_000)
    assert encode(content) == (Codec.RAW, content)
