"""Removes the line that the shell's line editor draws for an exec (the wrapper) from the terminal's output.

Programs in the background may print at any moment, also between two writes of the editor. So only bytes that certainly
come from the editor are removed: the wrapper's text, the sequences that editors insert between the characters of a line
(wraps, colours), and the cursor movements and the newline directly before and after the text. If a program has printed
within the text, nothing is removed.
"""

import re
from typing import NamedTuple

from shellwrap import modes

# The texts of the wrappers that the hooks of bash and zsh (hooks.bash, .zshrc) put into the edited line.
WRAPPERS = (
    b' \\builtin eval "$__wp_x"',
    b' { { { __wp&&:;} 2>/dev/null;\\builtin eval " $__wp_c";} <"$__wp_i";} always { { __wp_z;} 2>/dev/null;}',
    b' { { __wp&&:;} 2>/dev/null;{ \\builtin eval " $__wp_c";};} always { { __wp_z;} 2>/dev/null;}',
)
_LONGEST = 1024  # maximum length of a drawing in bytes
_BETWEEN = re.compile(rb"(?:\x1b\[[\d;]*[A-DKm]|[\r\n\x08])*")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[\d;]*)?)?\Z")
_TAIL = re.compile(rb"(?:\x1b\[\d*[A-DK]|\x1b\[\?(?:1|2004)l|\x1b>|\x08)*(?:\r{1,2}\n(?:\x1b\[\?2004l\r)?)?")
_TAIL_UNFINISHED = re.compile(rb"[\x1b\[?\dl\r]{0,10}\Z")
# The bytes that may precede the body of a wrapper: cursor movements back over a partly typed line, then blanks and
# braces. zsh omits the first blanks and braces if the partly typed line begins with the same characters.
_OPENING = re.compile(rb"(?:\x1b\[\d*[A-DK]|\x08)*(?:(?:(?:(?:(?:(?: )?\{)? )?\{)? )?\{)? ?(?:\x1b(?:\[\d*)?)?\Z")
_BODIES = tuple(wrapper.lstrip(b" {") for wrapper in WRAPPERS)
_BODY_STARTS = re.compile(b"|".join(sorted({re.escape(body[:1]) for body in _BODIES})) + rb"|\Z")


class _Place(NamedTuple):
    """The position of a drawing in some bytes. `end` is None if the drawing may begin at `start` but the bytes end
    before the drawing does.
    """

    start: int
    end: int | None


class Undrawn:
    """Removes the first drawing of a wrapper from a stream that arrives in arbitrary pieces."""

    def __init__(self) -> None:
        self._held = b""  # bytes that are, or may be, the beginning of the drawing
        self._is_over = False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to show. Bytes that may belong to an incomplete drawing are kept for the next call."""
        if self._is_over:
            return data
        data = self._held + data
        place = _find(data)
        if place.end is not None and not _TAIL_UNFINISHED.match(data, place.end):
            self._held, self._is_over = b"", True
            return _without(data, place.start, place.end)
        shown = max(place.start, len(data) - _LONGEST)
        self._held = data[shown:]
        return data[:shown]

    def finish(self) -> bytes:
        """Return the bytes that `feed` kept, without the drawing if it is complete.

        Call this when the editor has drawn the whole line.
        """
        held, self._held, self._is_over = self._held, b"", True
        place = _find(held)
        return held if place.end is None else _without(held, place.start, place.end)


def _without(data: bytes, start: int, end: int) -> bytes:
    """Return `data` without the drawing, but with the changes of terminal modes in it, such as bracketed paste."""
    return data[:start] + modes.changes(data[start:end]) + data[end:]


def _find(data: bytes) -> _Place:
    """Find the first drawing in `data` that is complete, or of which `data` may contain only the beginning."""
    for begin in _BODY_STARTS.finditer(data):
        at = begin.start()
        for body in _BODIES:
            is_possible, end = _read(data, at, body)
            if is_possible:
                opening = _OPENING.search(data, max(0, at - _LONGEST), at)
                tail = _TAIL.match(data, end) if end is not None else None
                return _Place(opening.start() if opening else at, tail.end() if tail else None)
    return _Place(len(data), None)  # not reached: the empty rest at the end counts as the beginning of a drawing


def _read(data: bytes, at: int, body: bytes) -> tuple[bool, int | None]:
    """Return whether the bytes from `at` on may be a drawing of `body`, and the drawing's end, or None if `data` ends
    before the drawing.

    At the end of a row, readline may draw a character, move the cursor to the row's start, and draw the character
    again.
    """
    for number, code in enumerate(body):
        between = _BETWEEN.match(data, at) if number else None
        at = between.end() if between else at
        if data[at : at + 1] != bytes([code]):
            return _UNFINISHED.match(data, at) is not None, None
        at += 3 if data[at + 1 : at + 3] == bytes([0x0D, code]) else 1
    return True, at
