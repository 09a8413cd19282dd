"""`waypoint mount`."""

from waypoint.cli.output import print_json, print_lines
from waypoint.cli.tables import short
from waypoint.client.sdk import Client
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    found = Client(given.text("home")).files.mount(given.required("name"), given.required("folder"))
    if given.flag("json"):
        print_json(found)
    else:
        print_lines([f"{short(found.capture)}  at {found.folder}, until it is unmounted"])
    return 0
