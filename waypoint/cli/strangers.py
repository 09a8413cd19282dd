"""Telling people what lies in the home and is unknown to its names.db."""

from waypoint.cli.output import note
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem


def tell_strangers(client: Client, *, each: bool = False) -> None:
    """Say on stderr that there are strangers, if there are any, and what to do. `each`: also list them."""
    try:
        found = client.strangers()
    except UsageProblem:  # the daemon of an earlier version still runs, and knows nothing of them
        return
    if not found:
        return
    running = len({one.id for one in found if one.kind == "processes"})
    which = f"{len({one.id for one in found})} captures, sessions or changes of the machine"
    runs = f", of which {running} {'runs' if running == 1 else 'run'}," if running else ""
    note(f"waypoint: the home {client.home} has {which}{runs} that its names.db does not know; they are kept")
    if each:
        for one in found:
            note(f"  {one.kind:<10}{one.path}")
    else:
        note("  'waypoint doctor' lists them")
    note(
        "  next: if another names.db knows them, put it back in its place after 'waypoint daemon stop'; if none does, "
        "'waypoint gc' removes them"
    )
