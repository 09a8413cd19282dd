"""The filter for old terminal output that is shown again: a replay after `attach`, and `waypoint logs` on a terminal.

A terminal answers some sequences with input, as if a person had typed it, and others reach the clipboard, a printer or
files. The program that has sent them may be hostile, and does not wait for an answer any more. So only printable text
and the sequences listed here are shown; all others are dropped, with the text in them.

The grammar is that of ECMA-48 as terminals read it (vt100.net/emu/dec_ansi_parser): ESC and CAN end an unfinished
sequence anywhere, and U+0080 to U+009F stand for ESC and a letter. What is shown consists of whole sequences only, so a
terminal reads it as this filter does.
"""

import codecs
import re

_LONGEST = 4096  # characters of an unfinished sequence that are kept
_C1 = {code: f"\x1b{chr(code - 0x40)}" for code in range(0x80, 0xA0)}
_TOKEN = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f]+|[\x07-\x0f])"
    r"|\x1b\[(?P<csi>[0-?]*[ -/]*[@-~])"
    r"|\x1b\](?P<osc>[^\x07\x18\x1a\x1b]*)(?:\x07|\x1b\\)"
    r"|\x1b[PX^_][^\x18\x1a\x1b]*(?:\x1b\\)?"
    r"|\x1b(?P<esc>[ -/]*[0-~])"
    r"|[\x00-\x1f\x7f]"  # also an ESC whose sequence is broken: the rest of it is shown as text
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x18\x1a\x1b]*\x1b?|[PX^_][^\x18\x1a\x1b]*\x1b?|[ -/]*)\Z")
_CSI = re.compile(
    r"[0-9;:]*[@A-MPSTXZ`abdefgrsu]"  # cursor, erasing, scrolling, tabulators
    r"|[0-9;:]*m|>[0-9;]*m"  # colours; xterm's keyboard modes
    r"|\?[0-9;]*[hlrsJK]|[0-9;]*(?<![0-9])(?:4|20)[hl]"  # private modes; insert mode, newline mode
    r"|2[23](?:;[0-9]*)*t"  # the stack of titles
    r"|[<>=][0-9;]*u|[0-9;]* q|!p"  # kitty's keyboard modes; form of the cursor; soft reset
)
# Titles, hyperlinks, colours, marks of prompts.
_OSC = re.compile(r"(?:[012]|8|4|1[0-9]|10[45]|11[0-9]|133)(?:;[^?]*)?|[0128];.*", re.DOTALL)
_ESC = re.compile(r"[78DEHMNOc=>]|[()*+][0-9A-Z]|#[3-8]")


class ReplayFilter:
    """Filters output that arrives in pieces of any size, from a state of the terminal without unfinished sequences."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # an unfinished sequence

    def feed(self, data: bytes) -> bytes:
        """Return what may be shown of `data`, without an unfinished sequence at its end, which may follow."""
        text = self._held + self._decoder.decode(data).translate(_C1)
        cut = _UNFINISHED.search(text)
        self._held = text[cut.start() :] if cut else ""
        if len(self._held) > _LONGEST:  # drop it, and what follows of it
            self._held = self._held[:2] + self._held[-1] if self._held[1] in "]PX^_" else ""
        shown = _TOKEN.sub(_shown, text[: cut.start()] if cut else text)
        return shown.encode()

    def rest(self) -> bytes:
        """Return the unfinished sequence or character at the end of the output."""
        return self._held.encode() + self._decoder.getstate()[0]


def _shown(token: re.Match[str]) -> str:
    for kind, allowed in (("csi", _CSI), ("osc", _OSC), ("esc", _ESC)):
        if token[kind] is not None:
            return token[0] if allowed.fullmatch(token[kind]) else ""
    return token["text"] or ""
