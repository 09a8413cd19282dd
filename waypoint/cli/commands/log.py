"""`waypoint log`."""

from collections.abc import Iterator, Mapping, Sequence

from waypoint.cli.caller import branch_of, named_branch
from waypoint.cli.output import note, print_json, print_lines, terminal_width, wants_colour
from waypoint.client.sdk import Client
from waypoint.model.errors import UnknownName
from waypoint.model.rendering import checkpoints_table, log_line
from waypoint.model.verbs import Given, did_you_mean


def run(given: Given) -> int:
    history = Client(given.text("home")).history
    captures = history.log(branch_of(given), all=given.flag("all"), limit=given.number("limit"))
    if given.flag("json"):
        print_json(captures)
        return 0
    coloured, width = wants_colour(), terminal_width()
    if given.flag("graph"):
        by_id = {capture.capture: capture for capture in captures}
        for drawing, capture_id in draw({capture.capture: capture.parents for capture in captures}):
            left = None if width is None else width - len(drawing) - 1
            line = f" {log_line(by_id[capture_id], coloured=coloured, width=left)}" if capture_id else ""
            print_lines([f"{drawing}{line}"])
    else:
        print_lines([log_line(capture, coloured=coloured, width=width) for capture in captures])
    return 0


def list_checkpoints(given: Given) -> int:
    """List the checkpoints, the newest first."""
    history, wanted = Client(given.text("home")).history, named_branch(given)
    branches = {branch.name for branch in history.branches()}
    if wanted is not None and wanted not in branches:
        said = f"there is no such branch{did_you_mean(wanted, branches)}"
        next_step = "'waypoint branch' lists the branches; without BRANCH, all checkpoints are listed"
        raise UnknownName("list the checkpoints of", f"branch {wanted}", said, next_step)
    found = [
        {
            "name": name,
            "capture": capture.capture,
            "branch": capture.branch,
            "created": capture.created,
            "message": capture.message,
            "tier": capture.tier,
            "size_bytes": sum(layer["size_bytes"] or 0 for layer in capture.layers.values() if layer is not None),
            "changes": capture.changes,
            "durable": capture.durable,
        }
        for capture in history.log(all=True)
        for name in capture.names
        if name not in branches and wanted in (None, capture.branch)
    ]
    if given.flag("json"):
        print_json(found)
    elif found:
        print_lines(checkpoints_table(found, coloured=wants_colour()))
    else:
        note("no checkpoints; 'waypoint checkpoint' makes one")
    return 0


def draw(parents: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str | None]]:
    """Yield the lines of `log --graph`, as git draws them, each with its node; None for a line between two nodes.

    `parents`: the parents of each node; children come before their parents. The line to a parent that is not a node
    itself ends at the bottom of the drawing. Unlike in git's drawing, a line without its column separates a node from
    an unrelated one above it.
    """
    columns: list[str] = []  # for each column, the node to which its line leads downwards
    between: list[str] = []
    ended = -1  # the column of the node above, if no line leads on from it
    for node, its_parents in parents.items():
        yield from ((line, None) for line in between)
        if node not in columns:
            if len(columns) == ended:
                yield " ".join("|" * ended), None
            columns.append(node)
        here = columns.index(node)
        ended = -1 if its_parents else here
        yield " ".join("*" if number == here else "|" for number in range(len(columns))), node
        between, columns = _lead_on(columns, here, its_parents)


def _lead_on(columns: Sequence[str], here: int, parents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Lead from the node in column `here` to its parents. Returns the lines between two nodes, and the new columns."""
    ends = [(number, aim) for number, node in enumerate(columns) for aim in (parents if number == here else [node])]
    after = list(dict.fromkeys(aim for _, aim in ends))  # lines to the same node become one, in the leftmost place
    moves = [(number, after.index(aim)) for number, aim in ends]
    between = []
    while any(place != goal for place, goal in moves):
        line = [" "] * (2 * max(map(max, moves)) + 1)
        for place, goal in moves:
            step = _step(place, goal)
            line[2 * place + step] = "/|\\"[step + 1]
        between.append("".join(line).rstrip())
        moves = [(place + _step(place, goal), goal) for place, goal in moves]
    return between, after


def _step(place: int, goal: int) -> int:
    return (goal > place) - (goal < place)
