"""`waypoint op log`."""

from waypoint.cli.output import note, print_json, print_lines, wants_colour
from waypoint.client.sdk import Client
from waypoint.model.rendering import operations_table
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    operations = Client(given.text("home")).history.operations(given.number("limit"))
    if given.flag("json"):
        print_json(operations)
    elif operations:
        print_lines(operations_table(operations, coloured=wants_colour()))
    else:
        note("no operations yet")
    return 0
