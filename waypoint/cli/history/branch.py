"""`waypoint branch [list|delete|rename]`."""

from waypoint.cli.output import note, print_json
from waypoint.cli.tables import print_table
from waypoint.client.sdk import Client
from waypoint.model.errors import UnknownName
from waypoint.model.facts import BranchFacts
from waypoint.model.rendering import age, short
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """`branch`, `branch list`. Returns the exit status. Raises WaypointError."""
    branches = Client(given.text("home")).history.branches()
    if given.flag("json"):
        print_json(branches)
    elif branches:
        print_table(("BRANCH", "STATE", "TIP", "TIER", "AGE"), [_row(branch) for branch in branches])
    else:
        note("no branches; 'waypoint shell' makes one")
    return 0


def delete(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    client, names = Client(given.text("home")), given.texts("names")
    known = {branch.name: branch for branch in client.history.branches()}
    for name in names:
        if name not in known:
            raise UnknownName("delete", f"branch {name}", "there is no such branch", "'waypoint branch' lists them")
    for name in names if given.flag("stop") else ():  # without it, a live one is refused
        if known[name].live:
            client.session(name).stop()
    client.history.remove(*names)
    if given.flag("json"):
        print_json({"removed": names})
    return 0


def rename(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    Client(given.text("home")).history.rename(given.required("old"), given.required("new"))
    return 0


def _row(branch: BranchFacts) -> tuple[str, ...]:
    state = "live" if branch.live else "ended" if branch.tier in (None, "files") else "parked"
    return branch.name, state, short(branch.tip), branch.tier or "-", age(branch.captured or branch.created)
