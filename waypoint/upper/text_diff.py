"""The differences between two texts, line by line, in git's format."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]

CONTEXT = 3
_MOST_PAIRS = 4_000_000
"""Most lines of one side times lines of the other for which common lines are searched: the time grows with it, and a
session chooses the texts.
"""
_NO_NEWLINE = b"\\ No newline at end of file\n"


class TextDiff(NamedTuple):
    """`hunks`: the lines of a unified diff, without its head."""

    insertions: int
    deletions: int
    hunks: list[bytes]


def is_text(content: bytes) -> bool:
    """Whether git would treat the content as text: no NUL in the first 8000 bytes."""
    return b"\0" not in content[:8000]


def compare(old: bytes, new: bytes, *, with_hunks: bool = True) -> TextDiff:
    if not with_hunks and not (old and new):
        return TextDiff(_count(new), _count(old), [])
    one, other = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if b"\r" in old or b"\r" in new:  # splitlines also splits at a lone carriage return
        one, other = (_lines(text) for text in (old, new))
    matcher = _Matcher(one, other)
    deletions = insertions = 0
    for tag, low, high, new_low, new_high in matcher.get_opcodes():
        if tag != "equal":
            deletions, insertions = deletions + high - low, insertions + new_high - new_low
    return TextDiff(insertions, deletions, list(_hunks(matcher, one, other)) if with_hunks else [])


def _count(text: bytes) -> int:
    return text.count(b"\n") + bool(text and not text.endswith(b"\n"))


def _lines(text: bytes) -> list[bytes]:
    *lines, last = text.split(b"\n")
    return [line + b"\n" for line in lines] + ([last] if last else [])


class _Matcher(difflib.SequenceMatcher[bytes]):
    """Finds common lines at the beginning and the end without a search, and those between them with difflib."""

    def __init__(self, one: Sequence[bytes], other: Sequence[bytes]) -> None:
        most = min(len(one), len(other))
        start = next((number for number in range(most) if one[number] != other[number]), most)
        end = next((number for number in range(most - start) if one[-1 - number] != other[-1 - number]), most - start)
        self._places = (start, len(one) - end, len(other) - end, len(one), len(other))
        super().__init__(None, one[start : len(one) - end], other[start : len(other) - end], autojunk=True)

    def get_opcodes(self) -> list[Opcode]:
        start, high, new_high, length, new_length = self._places
        found: list[Opcode] = [("equal", 0, start, 0, start)] if start else []
        if start < high and start < new_high and (high - start) * (new_high - start) <= _MOST_PAIRS:
            for tag, *places in super().get_opcodes():
                one, to, other, other_to = (place + start for place in places)
                found.append((tag, one, to, other, other_to))
        elif start < high or start < new_high:
            tag = "insert" if start == high else "delete" if start == new_high else "replace"
            found.append((tag, start, high, start, new_high))
        return found + ([("equal", high, length, new_high, new_length)] if high < length else [])


def _hunks(matcher: _Matcher, one: Sequence[bytes], other: Sequence[bytes]) -> Iterator[bytes]:
    if one == other:
        return
    for group in matcher.get_grouped_opcodes(CONTEXT):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n".encode()
        for tag, low, high, new_low, new_high in group:
            if tag == "equal":
                yield from _marked(b" ", one[low:high])
                continue
            yield from _marked(b"-", one[low:high])
            yield from _marked(b"+", other[new_low:new_high])


def _marked(mark: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line
        if not line.endswith(b"\n"):
            yield b"\n"
            yield _NO_NEWLINE


def _range(low: int, high: int) -> str:
    length = high - low
    begin = low + (1 if length else 0)
    return str(begin) if length == 1 else f"{begin},{length}"
