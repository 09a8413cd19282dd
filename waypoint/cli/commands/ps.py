"""`waypoint ps`."""

from waypoint.cli.output import note, print_json, tell
from waypoint.cli.strangers import tell_strangers
from waypoint.cli.tables import count, duration, print_table, size
from waypoint.client.sdk import Client
from waypoint.model.facts import SessionFacts
from waypoint.model.verbs import Given

HEADINGS = ("BRANCH", "STATE", "PID", "UP", "MEMORY", "PROCESSES", "FILES", "ATTACHED", "USER", "KEPT")
_NUMBERS = frozenset({"PID", "UP", "MEMORY", "PROCESSES", "FILES", "ATTACHED"})


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    client = Client(given.text("home"))
    sessions = client.sessions(all=given.flag("all"))
    if given.flag("json"):
        print_json(sessions)
    elif sessions:
        columns = len(HEADINGS) if any(one.kept_in for one in sessions) else -1  # sessions that run are kept nowhere
        print_table(HEADINGS[:columns], [_row(session)[:columns] for session in sessions], right=_NUMBERS)
    else:
        note("no sessions; 'waypoint shell' starts one")
    tell("cannot be reached", [f"{one.branch}: {one.said}" for one in sessions if one.said])
    tell_strangers(client)
    return 0


def _row(session: SessionFacts) -> tuple[str, ...]:
    return (
        session.branch,
        session.state,
        count(session.pid),
        duration(session.uptime_s),
        size(session.memory_bytes),
        count(session.processes),
        size(session.upper_bytes),
        count(session.attached),
        session.user or "-",
        session.kept_in or "-",
    )
