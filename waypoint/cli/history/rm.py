"""`waypoint rm`."""

from waypoint.cli.output import print_json
from waypoint.client.sdk import Client
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    names = given.texts("names")
    Client(given.text("home")).history.remove(*names)
    if given.flag("json"):
        print_json({"removed": names})
    return 0
