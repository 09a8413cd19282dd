"""`waypoint apply`."""

import dataclasses
import os

from waypoint.cli.output import fail, note, print_json, print_lines, tell
from waypoint.client.address import pick_branch
from waypoint.client.sdk import Client
from waypoint.model.details.applied_facts import AppliedFacts, FileLine
from waypoint.model.errors import Conflicting
from waypoint.model.paths import quoted_path, spelled
from waypoint.model.verbs import Given

_MOST_TOLD = 20  # conflicts; --json has more of them


def run(given: Given) -> int:
    """Returns the exit status: 6 if there are conflicts. Raises WaypointError."""
    client, name = Client(given.text("home")), pick_branch(given.text("argument"))
    paths = [os.path.abspath(path) for path in given.texts("words")]
    found = client.history.apply(name, *paths, dry_run=given.flag("dry_run"), force=given.flag("force"))
    as_json = given.flag("json")
    if not as_json:
        _print(found)
    if found.conflicts:
        return fail(_conflicting(client.home, found, name, paths), as_json=as_json, beside=dataclasses.asdict(found))
    if as_json:
        print_json(found)
    else:
        _conclude(client, found)
    return 0


def _print(found: AppliedFacts) -> None:
    if found.base != "/":
        note(f"onto {quoted_path(found.base)}")
    if found.dry_run or not found.conflicts:
        print_lines([f"{line['said']}  {quoted_path(line['path'])}" for line in found.changes])
        if found.files > len(found.changes):
            print_lines([f"and {found.files - len(found.changes)} more"])
        tell("runs with the rights of its owner or group", [quoted_path(path) for path in found.setid])
        heading = "changed since, would be replaced" if found.dry_run else "changed since, and replaced"
        tell(heading, [quoted_path(path) for path in found.replaced])


def _conflicting(home: str, found: AppliedFacts, name: str, paths: list[str]) -> Conflicting:
    """The error for conflicts, the first of which are told before it."""
    tell("conflict", [_told(line) for line in found.conflicts[:_MOST_TOLD]])
    more = found.conflicts_total - _MOST_TOLD
    if more > 0:
        note(f"and {more} more conflicts")
    chosen = ["--", *paths] if paths else []
    count = f"{found.conflicts_total} conflict{'' if found.conflicts_total == 1 else 's'}"
    look = spelled(home, "diff", name, "--machine", "--patch", *chosen)
    force_it = spelled(home, "apply", name, "--force", *chosen)
    next_step = f"look at what differs: {look}; then have all of it replaced, which an undo brings back: {force_it}"
    if found.fixed:
        next_step = f"apply what has none: waypoint apply {name} -- PATH...; or make these files alike on both sides"
    return Conflicting("apply", name, f"{count}, nothing was done", next_step)


def _told(line: FileLine) -> str:
    return f"{quoted_path(line['path'])}: {line['said']}"


def _conclude(client: Client, found: AppliedFacts) -> None:
    if not found.files:
        note("nothing to apply: the machine has all of it")
    elif found.dry_run:
        note("nothing was done (--dry-run)")
    elif found.operation is not None:
        tell("the way back", [spelled(client.home, "undo", str(found.operation))])
