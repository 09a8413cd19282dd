"""`waypoint branch` with its commands, and `waypoint rm`."""

from waypoint.cli.output import note, print_json, print_lines, wants_colour
from waypoint.client.sdk import Client
from waypoint.model.errors import UnknownName
from waypoint.model.facts import BranchFacts
from waypoint.model.rendering import age, short, table
from waypoint.model.verbs import Given, did_you_mean


def list_branches(given: Given) -> int:
    branches = Client(given.text("home")).history.branches()
    if given.flag("json"):
        print_json(branches)
    elif branches:
        rows = [_row(branch) for branch in branches]
        print_lines(table(("BRANCH", "STATE", "TIP", "TIER", "AGE"), rows, coloured=wants_colour()))
    else:
        note("no branches; 'waypoint shell' creates one")
    return 0


def _row(branch: BranchFacts) -> tuple[str, ...]:
    state = "live" if branch.live else "ended" if branch.tier in (None, "files") else "parked"
    return branch.name, state, short(branch.tip), branch.tier or "-", age(branch.captured or branch.created)


def delete(given: Given) -> int:
    client, names = Client(given.text("home")), list(dict.fromkeys(given.texts("names")))
    known = {branch.name: branch for branch in client.history.branches()}
    for name in names:
        if name not in known:
            said = f"there is no such branch{did_you_mean(name, known)}"
            raise UnknownName("delete", f"branch {name}", said, "'waypoint branch' lists all branches")
    for name in names if given.flag("stop") else ():  # without --stop, the daemon refuses a running session
        if known[name].live:
            client.session(name).stop()
    return _remove(client, given)


def rename(given: Given) -> int:
    Client(given.text("home")).history.rename(given.required("old"), given.required("new"))
    return 0


def remove(given: Given) -> int:
    return _remove(Client(given.text("home")), given)


def _remove(client: Client, given: Given) -> int:
    names = given.texts("names")
    client.history.remove(*names, now="now" in given and given.flag("now"))
    if given.flag("json"):
        print_json({"removed": names})
    return 0
