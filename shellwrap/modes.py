"""Which modes programs have switched on in a terminal, so that another terminal can be put in the same state.

Only modes that outlive a repaint and change what a terminal sends or shows: alternate screen, mouse reports,
bracketed paste, cursor, cursor keys, keypad, wrapping, focus reports. One bit each, in the order of MODES; the ring's
header keeps them.
"""

import re

# DEC private modes (xterm's control sequences), and whether a fresh terminal has them on.
MODES = (1, 7, 25, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004)
_KEYPAD = 1 << len(MODES)
_BITS = {str(mode).encode(): 1 << place for place, mode in enumerate(MODES)}
DEFAULT = _BITS[b"7"] | _BITS[b"25"]
ALTERNATE = _BITS[b"47"] | _BITS[b"1047"] | _BITS[b"1049"]
_CHANGE = re.compile(rb"\x1b(?:\[\?([0-9;]{1,48})([hl])|([=>c])|\[!p)")
_STARTS = (b"\x1b[?", b"\x1b=", b"\x1b>", b"\x1bc", b"\x1b[!p")
# A sequence cut by the end of a piece is at most so long.
_LONGEST = 56


class ModeTracker:
    """Follows a stream that comes in arbitrary pieces."""

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
        self._position += len(data)
        if not self._carry and b"\x1b" not in data:
            return
        data = self._carry + data
        if any(start in data for start in _STARTS):  # five plain searches: floods of colours are full of escapes
            self._apply(data)
        cut = data.rfind(b"\x1b", max(0, len(data) - _LONGEST))
        self._carry = data[cut:] if cut >= 0 and not _CHANGE.match(data, cut) else b""

    def _apply(self, data: bytes) -> None:
        base = self._position - len(data)
        # Only the last of equal changes matters, which keeps a flood of them cheap.
        last: dict[bytes, re.Match[bytes]] = {match[0]: match for match in _CHANGE.finditer(data)}
        for match in sorted(last.values(), key=re.Match.start):
            before = self.alternate
            self.bits = changed(self.bits, match)
            if self.alternate and not before:
                self.alternate_from = base + match.start()


def alternate_left(data: bytes) -> int:
    """Behind what leaves the alternate screen in `data`, if `data` begins on it; else 0."""
    for match in _CHANGE.finditer(data) if b"\x1b[?" in data else ():
        if match[1] and any(_BITS.get(mode, 0) & ALTERNATE for mode in match[1].split(b";")):
            return match.end() if match[2] == b"l" else 0
    return 0


def changed(bits: int, match: re.Match[bytes]) -> int:
    """`bits` after the change that `match` is."""
    if match[1]:
        for mode in match[1].split(b";"):
            bit = _BITS.get(mode, 0)
            bits = bits | bit if match[2] == b"h" else bits & ~bit
        return bits
    if match[3] in (b"=", b">"):
        return bits | _KEYPAD if match[3] == b"=" else bits & ~_KEYPAD
    return DEFAULT | (bits & ALTERNATE if match[0] == b"\x1b[!p" else 0)


def reset() -> bytes:
    """Bytes that bring any terminal to DEFAULT, with plain colours and the whole screen scrolling. What is shown stays.

    The alternate screen is left by 1047: 1049 would also move the cursor, even of a terminal that is not on it.
    """
    off = ";".join(str(mode) for mode in MODES if not DEFAULT & _BITS[str(mode).encode()] and mode not in (47, 1049))
    return f"\x1b[!p\x1b[?{off}l\x1b[?7;25h\x1b>\x1b[0m".encode()


def restore(bits: int) -> bytes:
    """Bytes that bring a terminal at DEFAULT to `bits`, apart from the alternate screen (that comes with a replay)."""
    place = [mode for mode in MODES if not _BITS[str(mode).encode()] & ALTERNATE]
    on = [str(mode) for mode in place if bits & ~DEFAULT & _BITS[str(mode).encode()]]
    off = [str(mode) for mode in place if DEFAULT & ~bits & _BITS[str(mode).encode()]]
    parts = [f"\x1b[?{';'.join(on)}h" if on else "", f"\x1b[?{';'.join(off)}l" if off else ""]
    return ("".join(parts) + ("\x1b=" if bits & _KEYPAD else "")).encode()


def changes(data: bytes) -> bytes:
    """Only the changes of modes in `data`."""
    return b"".join(match[0] for match in _CHANGE.finditer(data))
