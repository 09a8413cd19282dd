"""Marks, the escape sequences of the shell hooks, are found in any stream, however it is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shellwrap.marks import LONGEST, PREFIX, Mark, MarkScanner, format_mark

FIELD = st.text("abcdefghijklmnopqrstuvwxyz0123456789%.=+- ", max_size=12)
MARK = st.builds(
    lambda kind, fields: format_mark(kind, *fields), st.sampled_from("PABSERTV"), st.lists(FIELD, max_size=4)
)
NOISE = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"\x1b", b"\x1b]", PREFIX, PREFIX[:4], b"\x07", b";", PREFIX + b"E;1", PREFIX + b"\x1b]", b"\n"]),
)
STREAM = st.lists(st.one_of(MARK, NOISE), max_size=12).map(b"".join)


def scan(data: bytes, cuts: list[int]) -> tuple[list[Mark], int]:
    scanner, found, last = MarkScanner(), [], 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        found += scanner.feed(data[last:cut])
        assert scanner.settled <= scanner.position == cut
        last = cut
    return found, scanner.settled


@given(STREAM, st.lists(st.integers(0, 200), max_size=8))
def test_cutting_the_stream_changes_nothing(data: bytes, cuts: list[int]) -> None:
    assert scan(data, cuts) == scan(data, [])


@given(STREAM, STREAM)
def test_later_marks_do_not_begin_in_the_settled_part(data: bytes, more: bytes) -> None:
    scanner = MarkScanner()
    scanner.feed(data)
    settled = scanner.settled
    assert all(mark.start >= settled for mark in scanner.feed(more))


@given(st.lists(st.one_of(MARK, st.text(max_size=10).map(str.encode).filter(lambda text: b"\x1b" not in text))))
def test_marks_in_text_are_found_at_their_places(parts: list[bytes]) -> None:
    data = b"".join(parts)
    found, _ = scan(data, [])
    assert [data[mark.start : mark.end] for mark in found] == [part for part in parts if part.startswith(PREFIX)]
    assert [format_mark(mark.kind, *mark.fields) for mark in found] == [p for p in parts if p.startswith(PREFIX)]


@pytest.mark.parametrize(
    "data",
    [
        b"\x1b]7717;E;1;2\n\x07",
        b"\x1b]7717;e;1;2\x07",
        b"\x1b]7717;E1;2\x07",
        b"\x1b]77170;E;1\x07",
        b"\x1b]7717;E;" + b"x" * LONGEST + b"\x07",
        "\x1b]7717;E;\u00e4\x07".encode(),
    ],
)
def test_lookalikes_are_no_marks(data: bytes) -> None:
    assert scan(data, []) == ([], len(data))


def test_a_mark_inside_an_unfinished_one_is_found() -> None:
    (found,) = scan(b"\x1b]7717;S;1\x1b]7717;E;1;2;0;Z\x07", [])[0]
    assert (found.kind, found.fields, found.start) == ("E", ("1", "2", "0", "Z"), 10)


def test_an_incomplete_mark_is_unsettled_only_while_it_can_become_a_mark() -> None:
    scanner = MarkScanner(100)
    scanner.feed(b"text\x1b]77")
    assert scanner.settled == 104
    scanner.feed(b"18")
    assert scanner.settled == 110
    scanner.feed(PREFIX + b"x" * LONGEST)
    assert scanner.settled == scanner.position
