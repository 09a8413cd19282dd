"""Recognizing the detach key in typed input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellwrap.detach_key import DetachKey

PREFIX = b"\x1d"


def typed(*pieces: bytes) -> tuple[bytes, bool]:
    key = DetachKey()
    passed = b""
    for piece in pieces:
        some, is_struck = key.feed(piece)
        passed += some
        if is_struck:
            return passed, True
    return passed, False


def test_the_key_detaches() -> None:
    assert typed(b"ls\r" + PREFIX + b"d") == (b"ls\r", True)


def test_the_key_may_come_in_two_pieces() -> None:
    assert typed(b"ls\r" + PREFIX, b"d") == (b"ls\r", True)


def test_the_prefix_twice_sends_one_prefix_and_does_not_detach() -> None:
    assert typed(PREFIX, PREFIX, b"d") == (PREFIX + b"d", False)


def test_before_any_other_key_the_prefix_is_passed_on() -> None:
    assert typed(PREFIX + b"Dd") == (PREFIX + b"Dd", False)


@pytest.mark.parametrize("prefix", [b"\x1b[93;5u", b"\x1b[93;5:1u", b"\x1b[27;5;93~"])
@pytest.mark.parametrize("leave", [b"d", b"\x1b[100u", b"\x1b[100;1u"])
def test_the_key_is_recognized_in_other_keyboard_protocols(prefix: bytes, leave: bytes) -> None:
    assert typed(b"a" + prefix, leave) == (b"a", True)


def test_escape_is_passed_on_at_once() -> None:
    assert typed(b"\x1b") == (b"\x1b", False)


@given(st.lists(st.binary().map(lambda piece: piece.replace(b"\x1d", b"").replace(b"\x1b", b""))))
def test_without_the_prefix_every_byte_is_passed_on_at_once(pieces: list[bytes]) -> None:
    assert typed(*pieces) == (b"".join(pieces), False)


@given(st.lists(st.sampled_from([PREFIX, b"d", b"x"])), st.data())
def test_cutting_the_input_changes_nothing(keys: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(keys)
    cut = data.draw(st.integers(0, len(whole)))
    assert typed(whole[:cut], whole[cut:]) == typed(whole)
