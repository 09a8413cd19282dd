"""Facts as text for people. For programs, `output.print_json` prints them."""

import os
import sys

from waypoint.cli.output import print_lines
from waypoint.model.errors import cleaned
from waypoint.model.verbs.told import SHORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

COLOURS = {
    "ok": "green",
    "live": "green",
    "degraded": "yellow",
    "ended": "bright_black",
    "parked": "bright_black",
    "missing": "red",
    "lost": "red",
    "unreachable": "red",
}
_GAP = "  "
_WIDEST = 80
_SGR = {"red": 31, "green": 32, "yellow": 33, "bright_black": 90}  # ECMA-48, 8.3.117


def print_table(
    headings: "Sequence[str]", rows: "Sequence[Sequence[str]]", *, right: frozenset[str] = frozenset()
) -> None:
    """Print a table whose columns are as wide as their longest cell of no more than _WIDEST: a longer one moves what is
    behind it in its own row. Columns in `right` are aligned to the right.
    """
    rows = [[cleaned(cell) for cell in row] for row in rows]
    widths = [
        max(len(cell) for cell in column if cell is column[0] or len(cell) <= _WIDEST)
        for column in zip(headings, *rows, strict=True)
    ]
    for number, row in enumerate([headings, *rows]):
        cells = []
        for heading, cell, width in zip(headings, row, widths, strict=True):
            padded = cell.rjust(width) if heading in right else cell.ljust(width)
            cells.append(styled(padded, bold=True) if number == 0 else coloured(padded))
        print_lines([_GAP.join(cells).rstrip()])


def coloured(word: str) -> str:
    """`word`, the name of a state, in the colour of this state if stdout is a terminal."""
    return styled(word, fg=COLOURS.get(word.strip(), ""))


def styled(text: str, *, fg: str = "", bold: bool = False) -> str:
    codes = [*([_SGR[fg]] if fg else []), *([1] if bold else [])]
    is_wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if is_wanted and codes else text


def size(count: int | None) -> str:
    """A number of bytes in the largest unit of which there is at least one: 17 B, 1.4 MiB, 214 GiB. None: "-"."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1023.95 or unit == "TiB":
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    raise AssertionError("unreachable")


def duration(seconds: float | None) -> str:
    """A time in its two largest units: 4s, 3m07s, 2h05m, 12d03h. None: "-"."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02}m"
    return f"{whole // 86400}d{whole // 3600 % 24:02}h"


def count(number: int | None) -> str:
    return "-" if number is None else str(number)


def age(moment: str | None) -> str:
    """The time since `moment`, a text as the daemon's answers have it (ISO 8601), as `duration` shows it. None: "-"."""
    if moment is None:
        return "-"
    from datetime import UTC, datetime  # takes 2 ms

    return duration(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()))


def short(capture: str | None) -> str:
    """The first digits of a capture's id, enough to tell captures apart. None: "-"."""
    return "-" if capture is None else capture[:SHORT]
