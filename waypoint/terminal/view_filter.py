"""The filter between a terminal's output and what a person is shown: it hides Waypoint's marks, and the wrapper line
that the shell's editor draws for an exec.

Only viewers and logs are filtered. The client of an exec gets the bytes as they are.
"""

import urllib.parse

from shellwrap import modes
from shellwrap.marks import Mark, MarkScanner
from shellwrap.ring import Ring
from waypoint.terminal import queries
from waypoint.terminal.drawing import Undrawn

_TAIL_MAX = 1 << 16
_CLEAR = b"\x1b[H\x1b[2J"


class ViewFilter:
    """Filters a stream that arrives in arbitrary pieces, from byte `position` of the terminal's output on."""

    def __init__(self, position: int, command: tuple[str, ...] = ()) -> None:
        """`command`: id and nonce of the command that runs without output processing at `position`; empty: none."""
        self._scanner = MarkScanner(position)
        self._held = b""  # bytes that may be the beginning of a mark
        self._undrawn: Undrawn | None = None  # from the mark A until V or P: the wrapper is drawn there
        self._command = command

    def feed(self, data: bytes) -> bytes:
        """Returns what to show of `data`. Bytes at its end that may be the beginning of a mark are held back until the
        next piece.
        """
        base = self._scanner.position - len(self._held)
        marks = self._scanner.feed(data)
        data = self._held + data
        parts, at = [], base
        for mark in marks:
            parts.append(self._text(data[at - base : mark.start - base]))
            parts.append(self.pass_mark(mark))
            at = mark.end
        settled = self._scanner.settled
        parts.append(self._text(data[at - base : settled - base]))
        self._held = data[settled - base :]
        return b"".join(parts)

    @property
    def holds(self) -> bool:
        """Whether bytes are held back. If not, a filter that `open_view` makes at this place goes on as this one."""
        return bool(self._held) or self._undrawn is not None

    def finish(self) -> bytes:
        """Returns the bytes that were held back as a possible beginning of a mark or of a drawing. To be called at the
        stream's end.
        """
        held, self._held = self._held, b""
        return self._text(held) + self._drawn()

    def pass_mark(self, mark: Mark) -> bytes:
        """Change the filter's state as `mark` asks; returns what to show in place of the mark."""
        if self._command:
            if mark.kind == "E" and mark.fields[:2] == self._command:
                self._command = ()
            return b""
        match mark.kind, mark.fields:
            case "A", _:
                rest = self._drawn()
                self._undrawn = Undrawn()
                return rest
            case "P", _:
                return self._drawn()
            case "V", (ident, nonce, mode, text):
                rest = self._drawn()
                self._command = (ident, nonce) if mode == "raw" else ()
                return rest + command_line(text)
            case _:
                pass
        return b""

    def _drawn(self) -> bytes:
        """What to show of the bytes since the mark A that were held back, now that the wrapper is drawn."""
        undrawn, self._undrawn = self._undrawn, None
        return undrawn.finish() if undrawn is not None else b""

    def _text(self, data: bytes) -> bytes:
        if self._undrawn is not None:
            return self._undrawn.feed(data)
        return data.replace(b"\n", b"\r\n") if self._command else data


def command_line(escaped: str) -> bytes:
    """The line that shows viewers a command which a client sent; it replaces the prompt. `escaped`: percent-encoded."""
    text = urllib.parse.unquote(escaped, errors="replace")
    shown = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
    return f"\r\x1b[K\x1b[2m\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK} {shown}\x1b[22m\r\n".encode()


def open_view(ring: Ring, position: int, running: tuple[str, ...]) -> ViewFilter:
    """A filter for the bytes from `position` on, in the state that the marks before `position` give it.

    `running`: id and nonce of the command that runs now without output processing; empty: none does.
    """
    marks = MarkScanner(ring.start).feed(ring.copy(ring.start, ring.end))
    ends = [mark for mark in marks if mark.kind in ("V", "E")]
    if ends and ends[0].kind == "E":  # its V is lost: the command was running at the ring's start
        running = ends[0].fields[:2]
    view = ViewFilter(position, running if not ends or ends[0].kind == "E" else ())
    for mark in marks:
        if mark.end <= position:
            view.pass_mark(mark)
    return view


def scrollback(ring: Ring) -> bytes:
    """All that is in the ring of a session that has ended, for people."""
    view = open_view(ring, ring.start, ())
    return view.feed(ring.copy(ring.start, ring.end)) + view.finish()


def blank() -> bytes:
    """Bytes that clear a terminal's screen and reset its modes."""
    return modes.reset() + _CLEAR


def repaint(ring: Ring, running: tuple[str, ...]) -> tuple[bytes, ViewFilter]:
    """Bytes that make a new viewer's terminal look nearly as if it had been attached all the time, and the filter for
    the output that follows. `running`: as in `open_view`.

    They do not draw a full-screen program whose start is no longer in the ring: the caller makes it redraw itself.
    """
    # The main screen's content ends where a full-screen program switched to the alternate screen; it is shown again
    # when that program ends.
    end = ring.alternate_from if ring.modes & modes.ALTERNATE else ring.end
    start, shown = ring.start, b""
    if end < start:
        start, shown = ring.end, b"\x1b[?1049h" + _CLEAR
    elif end - start > _TAIL_MAX:
        start = min(_line_start(ring, end - _TAIL_MAX), end)
    if 0 < start < end:  # `start` may lie within the output of an earlier full-screen program, which is skipped
        start += modes.alternate_left(ring.copy(start, end))
    clear = _CLEAR if start > 0 and not shown else b""
    view = open_view(ring, start, running)
    replay = queries.without(view.feed(ring.copy(start, ring.end)))
    return modes.reset() + clear + shown + replay + modes.restore(ring.modes), view


def _line_start(ring: Ring, position: int) -> int:
    """The position after the first newline from `position` on; `position` itself if there is no newline."""
    return position + ring.copy(position, ring.end).find(b"\n") + 1
