"""`waypoint du`."""

from waypoint.cli.output import print_json, print_lines
from waypoint.cli.tables import print_table
from waypoint.client.sdk import Client
from waypoint.model.facts import DuFacts
from waypoint.model.rendering import short, size
from waypoint.model.verbs import Given

_RIGHT = frozenset({"FILES", "OWN FILES", "PROCESSES"})


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    names = given.texts("names")
    found = Client(given.text("home")).history.du(*names)
    if given.flag("json"):
        print_json(found)
        return 0
    rows = [
        (
            one["kind"],
            short(one["id"]),
            ", ".join(one["names"]) or "-",
            *(size(one[part]) for part in ("files_bytes", "own_files_bytes", "processes_bytes")),
        )
        for one in found.holders
    ]
    if rows:
        print_table(("WHAT", "ID", "NAMES", "FILES", "OWN FILES", "PROCESSES"), rows, right=_RIGHT)
    if not names:
        print_lines([""])
        for heading, value in _whole(found):
            print_lines([f"{heading:<24}{value}"])
    return 0


def _whole(found: DuFacts) -> list[tuple[str, str]]:
    """The home as a whole: headings and values."""
    shared = f"{size(found.unique_bytes)}, if what they share counts each time {size(found.logical_bytes)}"
    pool = f"{size(found.pool_bytes)}, of which {size(found.overhead_bytes)} are room for writing and btrfs's own"
    return [
        ("captures and sessions", shared),
        ("pool of files", pool),
        ("processes, terminals", size(found.hot_bytes)),
        ("names.db", size(found.names_bytes)),
        ("logs", size(found.logs_bytes)),
        ("the home", f"{size(found.home_bytes)}; {size(found.free_bytes)} are free on its disk"),
    ]
