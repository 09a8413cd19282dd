"""The escape sequences that reset a user's terminal when the user leaves a session."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellwrap.screen_undo import ScreenUndo

PLAIN = b"\x1b[m"


def undo_after(*pieces: bytes) -> bytes:
    screen = ScreenUndo()
    for piece in pieces:
        screen.feed(piece)
    return screen.undo()


def test_after_plain_output_only_colours_are_reset() -> None:
    assert undo_after(b"hello\r\n\x1b[31mred\x1b[2J\x1b[5;5H") == PLAIN


@pytest.mark.parametrize(
    ("on", "off"),
    [
        (b"\x1b[?1049h", b"\x1b[?1049l"),
        (b"\x1b[?1002;1006h", b"\x1b[?1006l"),
        (b"\x1b[?2004h", b"\x1b[?2004l"),
        (b"\x1b[?25l", b"\x1b[?25h"),
        (b"\x1b[?7l", b"\x1b[?7h"),
        (b"\x1b=", b"\x1b>"),
        (b"\x1b[>5u", b"\x1b[<99u"),
        (b"\x1b[=1;1u", b"\x1b[<99u"),
        (b"\x1b[>4;2m", b"\x1b[>4m"),
        (b"\x1b[5 q", b"\x1b[0 q"),
        (b"\x1b[2;20r", b"\x1b7\x1b[r\x1b8"),
        (b"\x1b(0", b"\x1b(B\x0f"),
        (b"\x1b[?1003;1016h", b"\x1b[?1016l"),
        (b"\x1b[?2026h", b"\x1b[?2026l"),
    ],
)
def test_a_mode_that_is_on_is_switched_off(on: bytes, off: bytes) -> None:
    assert off in undo_after(b"text" + on + b"text")


@pytest.mark.parametrize("mode", [b"1049", b"1000", b"2004", b"1"])
def test_a_mode_that_the_program_has_switched_off_is_not_sent_again(mode: bytes) -> None:
    assert undo_after(b"\x1b[?" + mode + b"h" + b"text" + b"\x1b[?" + mode + b"l") == PLAIN


def test_the_alternate_screen_is_left_last_so_that_the_cursor_is_restored() -> None:
    undone = undo_after(b"\x1b[?1049h\x1b[?1000h\x1b[?25l\x1b[>1u")
    assert undone.index(b"?1049l") > max(undone.index(b"?1000l"), undone.index(b"?25h"), undone.index(b"<99u"))
    assert undone.count(b"\x1b[<99u") == 2  # each of the two screens has a stack of keyboard modes


ON = [b"\x1b[?1049h", b"\x1b[?25l", b"\x1b=", b"\x1b[>1u", b"\x1b[>4;1m", b"\x1b[3 q", b"\x1b[1;9r", b"plain \x1b[1m"]


@given(st.lists(st.sampled_from(ON)), st.data())
def test_cutting_the_output_changes_nothing(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    first = data.draw(st.integers(0, len(whole)))
    second = data.draw(st.integers(first, len(whole)))
    assert undo_after(whole[:first], whole[first:second], whole[second:]) == undo_after(whole)
