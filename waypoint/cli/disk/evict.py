"""`waypoint evict`."""

from waypoint.cli.output import print_json, print_lines, tell
from waypoint.cli.tables import short
from waypoint.client.sdk import Client
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status: 1 if something that was named stays. Raises WaypointError."""
    found = Client(given.text("home")).disk.evict(*given.texts("names"), all=given.flag("all"))
    if given.flag("json"):
        print_json(found)
    else:
        print_lines([f"{short(capture)}  in the store alone" for capture in found.evicted])
    tell("kept", found.kept)
    return 1 if found.kept and given.texts("names") else 0
