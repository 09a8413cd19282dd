"""What brings a terminal back to rest after a session was shown on it: a program left behind cannot do it.

Only what a program may really have switched on is reset: leaving the alternate screen without having entered it, for
one, moves the cursor. Sequences: xterm's control sequences (ctlseqs), kitty's keyboard protocol.
"""

import re

from shellwrap.modes import ALTERNATE, DEFAULT, MODES, ModeTracker

# What ModeTracker does not follow, since no repaint brings it back: seen once, it is undone; that harms nothing if the
# program has done so itself. Name, what switches it on, what undoes it.
_KEYS = "keys"
_EXTRAS = (
    (_KEYS, rb"\[[>=][0-9;]*u", b"\x1b[<99u"),  # kitty's keyboard protocol: more pops than anyone has pushed
    ("other_keys", rb"\[>4;[0-9]", b"\x1b[>4m"),  # xterm's modifyOtherKeys
    ("cursor_style", rb"\[[1-6] q", b"\x1b[0 q"),
    ("region", rb"\[[0-9]+;[0-9]*r", b"\x1b7\x1b[r\x1b8"),
    ("charset", rb"[()][0-9AC-Z]", b"\x1b(B\x0f"),
    ("reverse", rb"\[\?5h", b"\x1b[?5l"),
    ("pixel_mouse", rb"\[\?(?:[0-9;]*;)?1016h", b"\x1b[?1016l"),
    ("synchronized", rb"\[\?2026h", b"\x1b[?2026l"),
)
_SEEN = re.compile(rb"\x1b(?:" + b"|".join(b"(?P<%s>%s)" % (name.encode(), on) for name, on, _ in _EXTRAS) + rb")")
_LONGEST = 32  # bytes of a sequence of these


class ScreenUndo:
    """Follows the output on its way to the terminal, in pieces of any size."""

    def __init__(self) -> None:
        self._tracker = ModeTracker()
        self._seen: set[str | None] = set()
        self._tail = b""

    def feed(self, data: bytes) -> None:
        self._tracker.feed(data)
        if self._tail or b"\x1b" in data:
            whole = self._tail + data
            self._seen.update(found.lastgroup for found in _SEEN.finditer(whole))
            cut = whole.rfind(b"\x1b", max(0, len(whole) - _LONGEST))
            self._tail = whole[cut:] if cut >= 0 else b""

    def undo(self) -> bytes:
        """The bytes to send. Colours always: what set them is not followed."""
        changed = self._tracker.bits ^ DEFAULT
        modes = [(mode, 1 << place) for place, mode in enumerate(MODES) if changed >> place & 1]
        # The alternate screen last, for the cursor of the main one to come back as it was left.
        modes.sort(key=lambda pair: bool(pair[1] & ALTERNATE))
        parts = [undo for name, _, undo in _EXTRAS if name in self._seen]
        parts += [b"\x1b[?%d%c" % (mode, b"h" if bit & DEFAULT else b"l") for mode, bit in modes]
        if _KEYS in self._seen and self._tracker.alternate:  # each screen has its own stack
            parts.append(b"\x1b[<99u")
        if changed >> len(MODES):
            parts.append(b"\x1b>")
        return b"".join([*parts, b"\x1b[m"])
