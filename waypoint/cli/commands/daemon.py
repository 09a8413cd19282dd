"""`waypoint daemon stop|status`."""

from waypoint.cli.output import print_json, print_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import StateConflict
from waypoint.model.verbs import Given


def stop(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    Client(given.text("home")).stop_daemon()
    return 0


def status(given: Given) -> int:
    """Returns the exit status. Raises WaypointError; StateConflict (exit status 4) if the daemon does not run."""
    client = Client(given.text("home"))
    found = client.running()
    if found is None:
        next_step = "none is needed: it starts with the next command that needs it"
        raise StateConflict("ask", f"the daemon of {client.home}", "it does not run", next_step)
    if given.flag("json"):
        print_json(found)
        return 0
    facts = {
        "home": found.home,
        "pid": str(found.pid),
        "version": found.version,
        "sessions": str(found.sessions),
        "since": found.started,
    }
    for name, value in facts.items():
        print_lines([f"{name:<10}{value}"])
    return 0
