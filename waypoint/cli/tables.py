"""Tables on stdout."""

from collections.abc import Sequence

from waypoint.cli.output import print_lines, wants_colour
from waypoint.model.rendering import table


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()) -> None:
    """As `table`, in colours if stdout is a terminal. Raises OSError if stdout cannot be written."""
    print_lines(table(headings, rows, right=right, coloured=wants_colour()))
