"""`waypoint gc`."""

from waypoint.cli.output import print_json, print_lines, tell
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.facts import GcFacts
from waypoint.model.rendering import age, short, size
from waypoint.model.times import parse_age
from waypoint.model.verbs import MAX_SECONDS, Given


def run(given: Given) -> int:
    """Returns the exit status: 1 if something could not be removed. Raises WaypointError."""
    found = Client(given.text("home")).history.gc(
        keep_operations_s=_keep_s(given), dry_run=given.flag("dry_run"), compact=given.flag("compact")
    )
    if given.flag("json"):
        print_json(found)
    else:
        _print(found)
    tell("stays", found.stays)
    tell("not removed", found.failed)
    return 1 if found.failed else 0


def _keep_s(given: Given) -> float | None:
    text = given.text("keep_operations")
    seconds = None if text is None else parse_age(text)
    if text is not None and (seconds is None or seconds > MAX_SECONDS):
        next_step = "a number with s, m, h, d or w behind it, such as 12h or 30d"
        raise UsageProblem("use", f"--keep-operations {text!r}", "it is not an age", next_step)
    return seconds


def _print(found: GcFacts) -> None:
    for one in found.removed:
        processes = f", {size(one['size_bytes'])} of processes" if one["size_bytes"] else ""
        print_lines([f"{short(one['capture'])}  {one['branch']}, {age(one['created'])} old{processes}"])
    for stranger in found.strangers:
        print_lines([f"unknown {stranger.kind:<10}{stranger.path}"])
    verb = "would remove" if found.dry_run else "removed"
    captures = f"{len(found.removed)} {'capture' if len(found.removed) == 1 else 'captures'}"
    unknown = f" and {len(found.strangers)} unknown things" if found.strangers else ""
    freed = "" if found.dry_run else f"; gave {size(found.freed_bytes)} back, the home has {size(found.home_bytes)}"
    print_lines([f"{verb} {captures}{unknown}{freed}"])
