"""`waypoint guide`."""

from typing import cast

from waypoint.agents.guide import Reader, guide
from waypoint.cli.output import print_lines
from waypoint.cli.pager import paged
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    text = guide(cast("Reader | None", given.text("for")))
    with paged():
        print_lines(text.splitlines())
    return 0
