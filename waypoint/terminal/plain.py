"""The output of a terminal as plain text: without escape sequences, full-screen programs and overwritten lines."""

import re

from waypoint.model.errors import cleaned

_FULL_SCREEN = re.compile(r"\x1b\[\?(?:1049|1047|47)h.*?(?:\x1b\[\?(?:1049|1047|47)l|\Z)", re.DOTALL)
# ECMA-48, 5.4 and 5.6; an unfinished sequence ends at the next one. Each alternative takes linear time.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # control sequences
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # control strings: OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"
)


def plain_lines(output: str, most: int) -> list[str]:
    """The last lines of the output, at most `most`. Of a row of empty lines, one is kept."""
    text = _SEQUENCE.sub("", _FULL_SCREEN.sub("", output))
    lines: list[str] = []
    for line in text.split("\n"):
        shown = cleaned(_erased(line.rstrip("\r").rpartition("\r")[2]), keep="\t").rstrip()
        if shown or (lines and lines[-1]):
            lines.append(shown)
    while lines and not lines[-1]:
        lines.pop()
    return lines[-most:]


def _erased(line: str) -> str:
    """The line without the characters over which the cursor was moved back."""
    if "\b" not in line:
        return line
    kept: list[str] = []
    for one in line:
        if one != "\b":
            kept.append(one)
        elif kept:
            kept.pop()
    return "".join(kept)
