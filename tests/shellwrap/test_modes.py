"""A terminal's modes are tracked in any stream, however it is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellwrap import modes
from shellwrap.modes import DEFAULT, MODES, ModeTracker

SWITCH = st.builds(
    lambda numbers, sign: f"\x1b[?{';'.join(map(str, numbers))}{sign}".encode(),
    st.lists(st.sampled_from([*MODES, 3, 12, 2026]), min_size=1, max_size=4),
    st.sampled_from("hl"),
)
OTHER = st.sampled_from([b"\x1b=", b"\x1b>", b"\x1bc", b"\x1b[!p", b"\x1b[31m", b"\x1b", b"\x1b[?", b"text", b"25h"])
STREAM = st.lists(st.one_of(SWITCH, OTHER), max_size=20).map(b"".join)


@given(STREAM, st.lists(st.integers(0, 200), max_size=8))
def test_cutting_the_stream_changes_nothing(data: bytes, cuts: list[int]) -> None:
    whole, pieces = ModeTracker(), ModeTracker()
    whole.feed(data)
    last = 0
    for cut in [*sorted(cuts), len(data)]:
        pieces.feed(data[last:cut])
        last = max(last, cut)
    assert pieces.bits == whole.bits
    assert pieces.alternate == whole.alternate


@given(st.integers(0, (1 << (len(MODES) + 1)) - 1))
def test_the_sequences_that_restore_modes_set_them_on_a_fresh_terminal(bits: int) -> None:
    fresh = ModeTracker()
    fresh.feed(modes.restore(bits))
    assert fresh.bits == bits & ~modes.ALTERNATE


@given(STREAM)
def test_a_reset_sets_the_default_modes_after_any_stream(data: bytes) -> None:
    tracker = ModeTracker()
    tracker.feed(data + b"\x18" + modes.reset())
    assert tracker.bits & ~modes.ALTERNATE == DEFAULT


@pytest.mark.parametrize(("number", "leaves"), [(47, b"47"), (1047, b"1047"), (1049, b"1049")])
def test_the_entry_of_the_alternate_screen_is_remembered(number: int, leaves: bytes) -> None:
    tracker = ModeTracker(position=1000)
    tracker.feed(f"before\x1b[?{number}h inside".encode())
    assert (tracker.alternate, tracker.alternate_from) == (True, 1006)
    tracker.feed(b"more \x1b[?25l")
    assert tracker.alternate_from == 1006
    tracker.feed(b"\x1b[?" + leaves + b"l")
    assert not tracker.alternate


def test_only_changes_of_modes_are_extracted() -> None:
    assert modes.changes(b"a\x1b[?1lb\x1b>\x1b[0mc\x1b[?2004l") == b"\x1b[?1l\x1b>\x1b[?2004l"
