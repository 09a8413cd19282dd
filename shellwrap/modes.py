"""Tracking the modes that programs switch on in a terminal, so that another terminal can be put in the same state.

Tracked are modes that a repaint does not restore and that change what a terminal sends or shows: alternate screen,
mouse reports, bracketed paste, cursor, cursor keys, keypad, wrapping, focus reports. The ring's header stores them as
an integer with one bit for each mode, in the order of MODES.
"""

import re

# DEC private modes (xterm's control sequences). DEFAULT: those that are on in a new terminal.
MODES = (1, 7, 25, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004)
_KEYPAD = 1 << len(MODES)
_BITS = {str(mode).encode(): 1 << place for place, mode in enumerate(MODES)}
DEFAULT = _BITS[b"7"] | _BITS[b"25"]
ALTERNATE = _BITS[b"47"] | _BITS[b"1047"] | _BITS[b"1049"]
_CHANGE = re.compile(rb"\x1b(?:\[\?([0-9;]{1,48})([hl])|([=>c])|\[!p)")
_STARTS = (b"\x1b[?", b"\x1b=", b"\x1b>", b"\x1bc", b"\x1b[!p")
_LONGEST = 56  # most bytes of a sequence that the end of a piece may cut


class ModeTracker:
    """Follows the mode changes in a stream of output that is fed in pieces of any size.

    `bits`: the modes that are on. `alternate_from`: the stream position at which the alternate screen was last entered.
    """

    def __init__(self, bits: int = DEFAULT, alternate_from: int = 0, position: int = 0) -> None:
        self.bits = bits
        self.alternate_from = alternate_from
        self._carry = b""
        self._position = position

    @property
    def alternate(self) -> bool:
        """True while the alternate screen is on."""
        return bool(self.bits & ALTERNATE)

    def feed(self, data: bytes) -> None:
        """Update `bits` and `alternate_from` by the next piece of the stream."""
        self._position += len(data)
        if not self._carry and b"\x1b" not in data:
            return
        data = self._carry + data
        if any(start in data for start in _STARTS):  # faster than the expression, as colours are escape sequences too
            self._apply(data)
        cut = data.rfind(b"\x1b", max(0, len(data) - _LONGEST))
        self._carry = data[cut:] if cut >= 0 and not _CHANGE.match(data, cut) else b""

    def _apply(self, data: bytes) -> None:
        base = self._position - len(data)
        # Of equal changes only the last one matters. So many equal changes cost little.
        last: dict[bytes, re.Match[bytes]] = {match[0]: match for match in _CHANGE.finditer(data)}
        for match in sorted(last.values(), key=re.Match.start):
            before = self.alternate
            self.bits = changed(self.bits, match)
            if self.alternate and not before:
                self.alternate_from = base + match.start()


def alternate_left(data: bytes) -> int:
    """The index after the sequence in `data` that leaves the alternate screen.

    0 if there is none, or if a sequence before it enters the alternate screen.
    """
    for match in _CHANGE.finditer(data) if b"\x1b[?" in data else ():
        if match[1] and any(_BITS.get(mode, 0) & ALTERNATE for mode in match[1].split(b";")):
            return match.end() if match[2] == b"l" else 0
    return 0


def changed(bits: int, match: re.Match[bytes]) -> int:
    """`bits` after the change of modes in `match` (of `_CHANGE`)."""
    if match[1]:
        for mode in match[1].split(b";"):
            bit = _BITS.get(mode, 0)
            bits = bits | bit if match[2] == b"h" else bits & ~bit
        return bits
    if match[3] in (b"=", b">"):
        return bits | _KEYPAD if match[3] == b"=" else bits & ~_KEYPAD
    return DEFAULT | (bits & ALTERNATE if match[0] == b"\x1b[!p" else 0)


def reset() -> bytes:
    """Bytes that set any terminal to DEFAULT, plain colours and a scrolling region of the whole screen.

    The screen's content stays. The alternate screen is left by mode 1047, as 1049 would also move the cursor, even in a
    terminal that is not on the alternate screen.
    """
    off = ";".join(str(mode) for mode in MODES if not DEFAULT & _BITS[str(mode).encode()] and mode not in (47, 1049))
    return f"\x1b[!p\x1b[?{off}l\x1b[?7;25h\x1b>\x1b[0m".encode()


def restore(bits: int) -> bytes:
    """Bytes that set a terminal from DEFAULT to `bits`, except the alternate screen, which replayed output enters."""
    place = [mode for mode in MODES if not _BITS[str(mode).encode()] & ALTERNATE]
    on = [str(mode) for mode in place if bits & ~DEFAULT & _BITS[str(mode).encode()]]
    off = [str(mode) for mode in place if DEFAULT & ~bits & _BITS[str(mode).encode()]]
    parts = [f"\x1b[?{';'.join(on)}h" if on else "", f"\x1b[?{';'.join(off)}l" if off else ""]
    return ("".join(parts) + ("\x1b=" if bits & _KEYPAD else "")).encode()


def changes(data: bytes) -> bytes:
    """The sequences in `data` that change modes, without the rest of `data`."""
    return b"".join(match[0] for match in _CHANGE.finditer(data))
