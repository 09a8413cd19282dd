"""The filter for terminal output that is shown to people: it hides Waypoint's marks, and the wrapper line that the
shell's editor draws for an exec.

Only the output for viewers and logs is filtered. The client of an exec gets the unchanged bytes.
"""

import urllib.parse

from shellwrap import modes
from shellwrap.marks import Mark, MarkScanner
from shellwrap.replay_filter import ReplayFilter
from shellwrap.ring import Ring
from waypoint.terminal.drawing import Undrawn

_TAIL_MAX = 1 << 16
_ENDS = ("E", "X")  # after these marks, output processing is on again
_CLEAR = b"\x1b[H\x1b[2J"


class ViewFilter:
    """Filters a stream that arrives in arbitrary pieces, from byte `position` of the terminal's output on."""

    def __init__(self, position: int, command: tuple[str, ...] = ()) -> None:
        """`command`: the id and nonce of the command that runs without output processing at `position`; empty if there
        is no such command.
        """
        self._scanner = MarkScanner(position)
        self._held = b""  # bytes that may be the beginning of a mark
        self._undrawn: Undrawn | None = None  # from the mark A until V or P, between which the wrapper is drawn
        self._command = command

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of `data` to show. Bytes at its end that may be the beginning of a mark are kept for the
        next call.
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

    def finish(self) -> bytes:
        """Return the bytes that were kept because they might begin a mark or a drawing. Call this at the stream's
        end.
        """
        held, self._held = self._held, b""
        return self._text(held) + self._drawn()

    def pass_mark(self, mark: Mark) -> bytes:
        """Update the filter's state for `mark`. Return the bytes to show in place of the mark."""
        if self._command:
            if mark.kind in _ENDS and mark.fields[:2] == self._command:
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
        """Return the bytes to show from those that were kept since the mark A, when the wrapper is completely drawn."""
        undrawn, self._undrawn = self._undrawn, None
        return undrawn.finish() if undrawn is not None else b""

    def _text(self, data: bytes) -> bytes:
        if self._undrawn is not None:
            return self._undrawn.feed(data)
        return data.replace(b"\n", b"\r\n") if self._command else data


def command_line(escaped: str) -> bytes:
    """Return the line by which viewers see a client's command; the line replaces the prompt. `escaped`: the command,
    percent-encoded.
    """
    text = urllib.parse.unquote(escaped, errors="replace")
    shown = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
    return f"\r\x1b[K\x1b[2m\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK} {shown}\x1b[22m\r\n".encode()


def open_view(ring: Ring, position: int, running: tuple[str, ...]) -> ViewFilter:
    """Return a filter for the bytes from `position` on. Its state results from the marks before `position`.

    `running`: the id and nonce of the command that now runs without output processing; empty if there is no such
    command.
    """
    marks = MarkScanner(ring.start).feed(ring.copy(ring.start, ring.end))
    ends = [mark for mark in marks if mark.kind in ("V", *_ENDS)]
    if ends and ends[0].kind in _ENDS:  # no V before this mark: the command was already running at the ring's start
        running = ends[0].fields[:2]
    view = ViewFilter(position, running if not ends or ends[0].kind in _ENDS else ())
    for mark in marks:
        if mark.end <= position:
            view.pass_mark(mark)
    return view


def blank() -> bytes:
    """Return bytes that clear a terminal's screen and reset its modes."""
    return modes.reset() + _CLEAR


def repaint(ring: Ring, running: tuple[str, ...]) -> tuple[bytes, ViewFilter]:
    """Return bytes that make a new viewer's terminal look nearly as if it had been attached all the time, and the
    filter for the output that follows. `running`: see `open_view`.

    The bytes do not draw a full-screen program whose start is no longer in the ring. The caller makes such a program
    redraw itself.
    """
    # The main screen's content ends where a full-screen program switched to the alternate screen. The main screen must
    # be painted, too, since it is shown again when that program ends.
    end = ring.alternate_from if ring.modes & modes.ALTERNATE else ring.end
    start, shown = ring.start, b""
    if end < start:
        start, shown = ring.end, b"\x1b[?1049h" + _CLEAR
    elif end - start > _TAIL_MAX:
        start = min(_line_start(ring, end - _TAIL_MAX), end)
    if 0 < start < end:  # if `start` lies within the output of an earlier full-screen program, skip that output
        start += modes.alternate_left(ring.copy(start, end))
    clear = _CLEAR if start > 0 and not shown else b""
    view = open_view(ring, start, running)
    replay = ReplayFilter()
    old = replay.feed(view.feed(ring.copy(start, ring.end)))
    return modes.reset() + clear + shown + old + modes.restore(ring.modes) + replay.rest(), view


def _line_start(ring: Ring, position: int) -> int:
    """Return the position after the first newline at or after `position`, or `position` if there is no newline."""
    return position + ring.copy(position, ring.end).find(b"\n") + 1
