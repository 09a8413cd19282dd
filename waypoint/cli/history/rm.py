"""`waypoint rm`."""

from waypoint.client.sdk import Client
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    Client(given.text("home")).history.remove(*given.texts("names"))
    return 0
