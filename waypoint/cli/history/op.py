"""`waypoint op log`."""

from waypoint.cli.output import note, print_json
from waypoint.cli.tables import age, print_table, short
from waypoint.client.sdk import Client
from waypoint.model.facts import OperationFacts
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    operations = Client(given.text("home")).history.operations(given.number("limit"))
    if given.flag("json"):
        print_json(operations)
    elif operations:
        rows = [(str(one.number), age(one.at), _verb(one), _moved(one), _undo(one)) for one in operations]
        print_table(("NUMBER", "AGE", "VERB", "MOVED", "UNDO"), rows, right=frozenset({"NUMBER", "AGE"}))
    else:
        note("no operations yet")
    return 0


def _verb(one: OperationFacts) -> str:
    return one.verb if one.undoes is None else f"{one.verb} of {one.undoes}"


def _moved(one: OperationFacts) -> str:
    names = [
        f"{name}: {short(before)} to {short(after)}" for name, (before, after) in one.moves.items() if before != after
    ]
    sessions = [f"{branch} {_change(before, after)}" for branch, (before, after) in one.sessions.items()]
    notes = [one.note] if one.note else []
    return ", ".join([*names, *sessions, *notes]) or "-"


def _change(was_live: bool, is_live: bool) -> str:
    if was_live:
        return "replaced" if is_live else "ended"
    return "started"


def _undo(one: OperationFacts) -> str:
    if one.undone:
        return "was undone"
    return one.undo if one.undo is not None else f"no: {one.said}"
