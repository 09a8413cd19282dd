"""`waypoint guide`."""

from waypoint.agents import guide
from waypoint.cli.output import print_lines
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """The exit status. Raises OSError."""
    print_lines(guide.text(given.text("for") or "").splitlines())
    return 0
