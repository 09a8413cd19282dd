"""From what a session's terminal printed to what a person is shown: our own marks, and the line that they type for
us, stay hidden.

Only for people. An exec's client gets the bytes as they are.
"""

import re
import urllib.parse

from shellwrap import modes
from shellwrap.marks import Mark, MarkScanner
from shellwrap.ring import Ring

# Drawing the wrapper takes a few hundred bytes. If S does not come within so many it is not a wrapper: a file with
# marks was printed.
_HIDDEN_MAX = 1 << 13
_TAIL_MAX = 1 << 16
_CLEAR = b"\x1b[H\x1b[2J"
# What a terminal answers as if it were typed. In a replay the one who asked is long gone, and the shell would get the
# answers.
_QUERY = re.compile(
    rb"\x1b(?:\[[>=?]?[0-9;]*(?:c|[56]n|\?[0-9;]*n|x|\$p)|\[\?[0-9;]*\$p|\[>[0-9]*q|\[\?u|\[1[1-9]t|\[2[01]t|Z"
    rb"|\][0-9;]*;\?(?:\x07|\x1b\\)|P[+$]q[^\x07\x1b]*\x1b\\)"
)


class ViewFilter:
    """A stream in arbitrary pieces, from byte `position` of the terminal's output on."""

    def __init__(self, position: int, command: tuple[str, ...] = ()) -> None:
        """`command`: id and nonce of the one that runs there without output processing, if one does."""
        self._scanner = MarkScanner(position)
        self._held = b""
        self._hidden: bytes | None = None  # what has been hidden since A; None: nothing is
        self._command = command

    def feed(self, data: bytes) -> bytes:
        """What to show of `data`; what may be the beginning of a mark comes with the next piece."""
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
        """What was kept because it might have been the beginning of a mark: nothing more comes."""
        held, self._held = self._held, b""
        return self._text(held)

    def pass_mark(self, mark: Mark) -> bytes:
        """Take notice of a mark; what to show in its place."""
        if self._command:
            if mark.kind == "E" and mark.fields[:2] == self._command:
                self._command = ()
            return b""
        match mark.kind, mark.fields:
            case "A", _:
                self._hidden = b""
            case "P", _:
                self._hidden = None
            case "V", (ident, nonce, mode, text):
                switches = modes.changes(self._hidden or b"")  # the editor's: bracketed paste, cursor keys
                self._hidden = None
                self._command = (ident, nonce) if mode == "raw" else ()
                return command_line(text) + switches
            case _:
                pass
        return b""

    def _text(self, data: bytes) -> bytes:
        if self._hidden is not None:
            self._hidden += data
            if len(self._hidden) > _HIDDEN_MAX:
                self._hidden = None
            return b""
        return data.replace(b"\n", b"\r\n") if self._command else data


def command_line(escaped: str) -> bytes:
    """A command that was not typed, as a line of its own in place of the prompt."""
    text = urllib.parse.unquote(escaped, errors="replace")
    shown = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
    return f"\r\x1b[K\x1b[2m\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK} {shown}\x1b[22m\r\n".encode()


def open_view(ring: Ring, position: int, running: tuple[str, ...]) -> ViewFilter:
    """A filter for the bytes from `position` on that knows what was before. `running`: the command of now, as above."""
    marks = MarkScanner(ring.start).feed(ring.copy(ring.start, ring.end))
    ends = [mark for mark in marks if mark.kind in ("V", "E")]
    if ends and ends[0].kind == "E":  # it began before what is left
        running = ends[0].fields[:2]
    view = ViewFilter(position, running if not ends or ends[0].kind == "E" else ())
    for mark in marks:
        if mark.end <= position:
            view.pass_mark(mark)
    return view


def blank() -> bytes:
    """What makes a terminal show nothing, in its usual modes."""
    return modes.reset() + _CLEAR


def repaint(ring: Ring, running: tuple[str, ...]) -> tuple[bytes, ViewFilter]:
    """What makes a terminal look as if it had been there all the time (or nearly), and the filter for what comes
    after it. `running`: the command that runs without output processing now, as id and nonce.

    A full-screen program whose start is no longer in the ring must be nudged to draw itself again.
    """
    # What the usual screen shows ends where a full-screen program has taken over, and comes back when that is left.
    end = ring.alternate_from if ring.modes & modes.ALTERNATE else ring.end
    start, shown = ring.start, b""
    if end < start:
        start, shown = ring.end, b"\x1b[?1049h" + _CLEAR
    elif end - start > _TAIL_MAX:
        start = min(_line_start(ring, end - _TAIL_MAX), end)
    if 0 < start < end:  # maybe in the midst of what an earlier program has drawn
        start += modes.alternate_left(ring.copy(start, end))
    clear = _CLEAR if start > 0 and not shown else b""
    view = open_view(ring, start, running)
    replay = _QUERY.sub(b"", view.feed(ring.copy(start, ring.end)))
    return modes.reset() + clear + shown + replay + modes.restore(ring.modes), view


def _line_start(ring: Ring, position: int) -> int:
    """The first start of a line from `position` on; `position` itself if there is none."""
    return position + ring.copy(position, ring.end).find(b"\n") + 1
