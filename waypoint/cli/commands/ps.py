"""`waypoint ps`."""

from waypoint.cli.output import note, print_json, print_lines, tell, wants_colour
from waypoint.cli.strangers import tell_strangers
from waypoint.client.sdk import Client
from waypoint.model.rendering import sessions_table
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    client = Client(given.text("home"))
    sessions = client.sessions(all=given.flag("all"))
    if given.flag("json"):
        print_json(sessions)
    elif sessions:
        print_lines(sessions_table(sessions, coloured=wants_colour()))
    else:
        note("no sessions; 'waypoint shell' starts one")
    tell("cannot be reached", [f"{one.branch}: {one.said}" for one in sessions if one.said])
    tell_strangers(client)
    return 0
