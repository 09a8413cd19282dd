"""`waypoint log`."""

from waypoint.cli.caller import branch_of
from waypoint.cli.history.graph import draw
from waypoint.cli.output import print_json, print_lines, wants_colour
from waypoint.client.sdk import Client
from waypoint.model.rendering import log_line
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    history = Client(given.text("home")).history
    captures = history.log(branch_of(given), all=given.flag("all"), limit=given.number("limit"))
    if given.flag("json"):
        print_json(captures)
        return 0
    coloured = wants_colour()
    lines = {capture.capture: log_line(capture, coloured=coloured) for capture in captures}
    if given.flag("graph"):
        for drawing, capture_id in draw({capture.capture: capture.parents for capture in captures}):
            print_lines([f"{drawing} {lines[capture_id]}" if capture_id else drawing])
    else:
        print_lines(list(lines.values()))
    return 0
