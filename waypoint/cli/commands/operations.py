"""`waypoint op log` and `waypoint undo`."""

import dataclasses

from waypoint.cli.caller import named_branch
from waypoint.cli.output import note, print_json, print_lines, terminal_width, wants_colour, warn, warn_lines
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.names import parse_name
from waypoint.model.outcomes import degraded_lines, text, undone_lines
from waypoint.model.paths import spelled
from waypoint.model.rendering import operations_table
from waypoint.model.verbs import Given


def log(given: Given) -> int:
    branch = named_branch(given)
    operations = Client(given.text("home")).history.operations(given.number("limit"), branch=branch)
    if given.flag("json"):
        print_json(operations)
    elif operations:
        print_lines(operations_table(operations, coloured=wants_colour(), width=terminal_width()))
    else:
        note("no operations yet" if branch is None else f"no operations on {branch}")
    return 0


def undo(given: Given) -> int:
    """Report what the undo cannot restore, then undo the operation."""
    number, branch = given.number("number"), given.text("branch")
    if number is not None and branch is not None:
        said = "--branch cannot be combined with a number"
        raise UsageProblem("undo", f"operation {number}", said, "leave out one of them")
    client = Client(given.text("home"))
    history = client.history
    planned = history.plan_undo(number, branch=None if branch is None else parse_name(branch))
    warn("will be lost", [text(one) for one in planned.lost])
    may_lose, force = given.flag("lose_processes"), given.flag("force")
    made, undone = history.take_back(planned.number, lose_processes=may_lose, force=force)
    if given.flag("json"):
        print_json({**dataclasses.asdict(made), "lost": undone.lost, "degraded": undone.degraded})
    else:
        print_lines(undone_lines(dataclasses.asdict(undone)))
        warn_lines(degraded_lines({"degraded": undone.degraded}))
        if made.ended:
            warn("to reverse this undo", [spelled(client.home, "undo", str(made.number))])
    return 0
