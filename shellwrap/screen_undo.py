"""Undoing what a session's programs have switched on in the terminal that showed them, after detaching from it.

The programs run on elsewhere, so they cannot undo it themselves. Only what was really switched on is undone, as undoing
can have effects of its own: leaving the alternate screen without having entered it moves the cursor. Sequences: xterm's
control sequences (ctlseqs), kitty's keyboard protocol.
"""

import re

from shellwrap.modes import ALTERNATE, DEFAULT, MODES, ModeTracker

# Settings that ModeTracker does not track, as a repaint does not restore them. A setting is undone if its sequence was
# seen, which does no harm if the program has undone it already. Each row: name, the sequence's expression, the undoing.
_KEYS = "keys"
_EXTRAS = (
    (_KEYS, rb"\[[>=][0-9;]*u", b"\x1b[<99u"),  # kitty's keyboard protocol has a stack: pop more than was ever pushed
    ("other_keys", rb"\[>4;[0-9]", b"\x1b[>4m"),  # xterm's modifyOtherKeys
    ("cursor_style", rb"\[[1-6] q", b"\x1b[0 q"),
    ("region", rb"\[[0-9]+;[0-9]*r", b"\x1b7\x1b[r\x1b8"),
    ("charset", rb"[()][0-9AC-Z]", b"\x1b(B\x0f"),
    ("reverse", rb"\[\?5h", b"\x1b[?5l"),
    ("pixel_mouse", rb"\[\?(?:[0-9;]*;)?1016h", b"\x1b[?1016l"),
    ("synchronized", rb"\[\?2026h", b"\x1b[?2026l"),
)
_SEEN = re.compile(rb"\x1b(?:" + b"|".join(b"(?P<%s>%s)" % (name.encode(), on) for name, on, _ in _EXTRAS) + rb")")
_LONGEST = 32  # most bytes of such a sequence


class ScreenUndo:
    """Follows the output that is written to a terminal, fed in pieces of any size."""

    def __init__(self) -> None:
        self._tracker = ModeTracker()
        self._seen: set[str | None] = set()
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Note what the next piece of the output switches on or off."""
        self._tracker.feed(data)
        if self._tail or b"\x1b" in data:
            whole = self._tail + data
            self._seen.update(found.lastgroup for found in _SEEN.finditer(whole))
            cut = whole.rfind(b"\x1b", max(0, len(whole) - _LONGEST))
            self._tail = whole[cut:] if cut >= 0 else b""

    def undo(self) -> bytes:
        """The bytes that undo what was switched on. They always reset the colours, which are not tracked."""
        changed = self._tracker.bits ^ DEFAULT
        modes = [(mode, 1 << place) for place, mode in enumerate(MODES) if changed >> place & 1]
        # The alternate screen is left last, which restores the cursor position of the main screen.
        modes.sort(key=lambda pair: bool(pair[1] & ALTERNATE))
        parts = [undo for name, _, undo in _EXTRAS if name in self._seen]
        parts += [b"\x1b[?%d%c" % (mode, b"h" if bit & DEFAULT else b"l") for mode, bit in modes]
        if _KEYS in self._seen and self._tracker.alternate:  # each screen has its own stack of keyboard modes
            parts.append(b"\x1b[<99u")
        if changed >> len(MODES):
            parts.append(b"\x1b>")
        return b"".join([*parts, b"\x1b[m"])
