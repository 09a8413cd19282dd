"""`waypoint undo`."""

import dataclasses

from waypoint.cli.output import print_json, print_lines, tell, tell_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.names import parse_name
from waypoint.model.paths import quoted_path, spelled
from waypoint.model.verbs import Given
from waypoint.model.verbs.told import told, told_taken_back


def run(given: Given) -> int:
    """Say what will not come back, then take the operation back. Returns the exit status. Raises WaypointError."""
    number, branch = given.number("number"), given.text("branch")
    if number is not None and branch is not None:
        raise UsageProblem(
            "take back", f"operation {number}", "--branch goes without a number", "leave one of them out"
        )
    client = Client(given.text("home"))
    history = client.history
    planned = history.plan_undo(number, branch=None if branch is None else parse_name(branch))
    tell("will not come back", planned.lost)
    lose_processes, force = given.flag("lose_processes"), given.flag("force")
    made, undone = history.take_back(planned.number, lose_processes=lose_processes, force=force)
    if given.flag("json"):
        beside = {"lost": undone.lost, "degraded": undone.degraded, "replaced": undone.replaced}
        print_json({**dataclasses.asdict(made), **beside})
    else:
        print_lines(told_taken_back(dataclasses.asdict(undone)))
        tell_lines(told({"degraded": undone.degraded}))
        tell("changed since, and replaced", [quoted_path(path) for path in undone.replaced])
        if made.ended or undone.removed or undone.replaced:
            tell("the way back", [spelled(client.home, "undo", str(made.number))])
    return 0
