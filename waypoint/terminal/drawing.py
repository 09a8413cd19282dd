"""Telling the line that the shell's editor draws for an exec (the wrapper) from all other output of the terminal.

Programs in the background may print at any moment, also between two writes of the editor. So only bytes that are known
to be the editor's are taken out: the wrapper's text, with what editors put between the characters of a line (wraps,
colours), and the cursor movements and the newline right around it. If a program's output lies within the text, nothing
is taken out.
"""

import re
from typing import NamedTuple

from shellwrap import modes
from waypoint.model.late_pattern import late_pattern

# The wrappers' texts, as the hooks of bash and zsh (hooks.bash, .zshrc) put them into the edited line.
WRAPPERS = (
    b' \\builtin eval "$__wp_x"',
    b' { { { __wp&&:;} 2>/dev/null;\\builtin eval " $__wp_c";} <"$__wp_i";} always { { __wp_z;} 2>/dev/null;}',
    b' { { __wp&&:;} 2>/dev/null;{ \\builtin eval " $__wp_c";};} always { { __wp_z;} 2>/dev/null;}',
)
_LONGEST = 1024  # most bytes of a drawing
_BETWEEN = late_pattern(rb"(?:\x1b\[[\d;]*[A-DKm]|[\r\n\x08])*")
_UNFINISHED = late_pattern(rb"(?:\x1b(?:\[[\d;]*)?)?\Z")
_TAIL = late_pattern(rb"(?:\x1b\[\d*[A-DK]|\x1b\[\?(?:1|2004)l|\x1b>|\x08)*(?:\r{1,2}\n(?:\x1b\[\?2004l\r)?)?")
_TAIL_UNFINISHED = late_pattern(rb"[\x1b\[?\dl\r]{0,10}\Z")
# What may precede the body of a wrapper: the cursor goes back over a half-typed line; blanks and braces. zsh does not
# draw the first of these again if the half-typed line begins with the same ones.
_OPENING = late_pattern(rb"(?:\x1b\[\d*[A-DK]|\x08)*(?:(?:(?:(?:(?:(?: )?\{)? )?\{)? )?\{)? ?(?:\x1b(?:\[\d*)?)?\Z")
_BODIES = tuple(wrapper.lstrip(b" {") for wrapper in WRAPPERS)
_BODY_STARTS = late_pattern(b"|".join(sorted({re.escape(body[:1]) for body in _BODIES})) + rb"|\Z")


class _Place(NamedTuple):
    """Where a drawing lies in some bytes. `end` None: its text may begin at `start`, and go on behind the bytes."""

    start: int
    end: int | None


class Undrawn:
    """Takes the first drawing of a wrapper out of a stream that arrives in arbitrary pieces."""

    def __init__(self) -> None:
        self._held = b""  # bytes that are, or may be, the beginning of the drawing
        self._is_over = False

    def feed(self, data: bytes) -> bytes:
        """Returns what to show of `data`. A drawing that may go on in the next piece is held back."""
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
        """Returns what to show of the bytes that were held back. To be called when the editor has drawn all."""
        held, self._held, self._is_over = self._held, b"", True
        place = _find(held)
        return held if place.end is None else _without(held, place.start, place.end)


def _without(data: bytes, start: int, end: int) -> bytes:
    """`data` without the drawing. The modes that the editor switches in it, such as bracketed paste, stay switched."""
    return data[:start] + modes.changes(data[start:end]) + data[end:]


def _find(data: bytes) -> _Place:
    """The first drawing in `data` that is there as a whole, or that may go on behind `data`."""
    for begin in _BODY_STARTS.finditer(data):
        at = begin.start()
        for body in _BODIES:
            is_possible, end = _read(data, at, body)
            if is_possible:
                opening = _OPENING.search(data, max(0, at - _LONGEST), at)
                tail = _TAIL.match(data, end) if end is not None else None
                return _Place(opening.start() if opening else at, tail.end() if tail else None)
    return _Place(len(data), None)  # not reached: an empty rest may always go on


def _read(data: bytes, at: int, body: bytes) -> tuple[bool, int | None]:
    """Whether `body` is drawn from `at` on, as far as `data` reaches, and where it ends, None if behind `data`.

    At the end of a row readline may draw a character, go to the row's start, and draw the character once more.
    """
    for number, code in enumerate(body):
        between = _BETWEEN.match(data, at) if number else None
        at = between.end() if between else at
        if data[at : at + 1] != bytes([code]):
            return _UNFINISHED.match(data, at) is not None, None
        at += 3 if data[at + 1 : at + 3] == bytes([0x0D, code]) else 1
    return True, at
