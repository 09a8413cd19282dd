"""`waypoint log`."""

from waypoint.cli.caller import branch_of
from waypoint.cli.history.graph import draw
from waypoint.cli.output import one_line, print_json, print_lines
from waypoint.cli.tables import age, short, styled
from waypoint.client.sdk import Client
from waypoint.model.facts import CaptureFacts
from waypoint.model.verbs import Given

_WHERE = {"memory": " (in memory)", "disk": " (on disk)", "torn": " (may be torn)", "store alone": " (store alone)"}
"""Behind the tier of a capture: where that is, unless it is in the store and here."""


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    history = Client(given.text("home")).history
    captures = history.log(branch_of(given), all=given.flag("all"), limit=given.number("limit"))
    if given.flag("json"):
        print_json(captures)
    elif given.flag("graph"):
        lines = {capture.capture: _line(capture) for capture in captures}
        for drawing, capture_id in draw({capture.capture: capture.parents for capture in captures}):
            print_lines([f"{drawing} {lines[capture_id]}" if capture_id else drawing])
    else:
        for capture in captures:
            print_lines([_line(capture)])
    return 0


def _line(capture: CaptureFacts) -> str:
    names = f" ({', '.join(styled(name, fg='green', bold=True) for name in capture.names)})" if capture.names else ""
    words = one_line(capture.message) or capture.reason
    kept = "removed" if capture.removed else f"{capture.tier}{_WHERE.get(capture.kept_in or '', '')}"
    return f"{styled(short(capture.capture), fg='yellow')}{names} {kept} {age(capture.created)} ago  {words}"
