"""`waypoint du`."""

from waypoint.cli.output import print_json, print_lines
from waypoint.cli.tables import print_table, short, size
from waypoint.client.sdk import Client
from waypoint.model.details.disk_facts import DuFacts
from waypoint.model.verbs import Given

_SIZES = {
    "FILES": "files_bytes",
    "OWN FILES": "own_files_bytes",
    "PROCESSES": "processes_bytes",
    "IN THE STORE": "stored_bytes",
}


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    names = given.texts("names")
    found = Client(given.text("home")).disk.du(*names)
    if given.flag("json"):
        print_json(found)
        return 0
    sizes = list(_SIZES.items())[: None if names else -1]  # the last one is known of names alone
    rows = [
        (
            f"{one['kind']}, evicted" if one.get("evicted") else one["kind"],
            short(one["id"]),
            ", ".join(one["names"]) or "-",
            *(size(one[part]) for _, part in sizes),  # type: ignore[literal-required]
        )
        for one in found.holders
    ]
    if rows:
        headings = [heading for heading, _ in sizes]
        print_table(("WHAT", "ID", "NAMES", *headings), rows, right=frozenset(headings))
    if not names:
        print_lines([""])
        for heading, value in _whole(found):
            print_lines([f"{heading:<29}{value}"])
    return 0


def _whole(found: DuFacts) -> list[tuple[str, str]]:
    """The home as a whole: headings and values."""
    shared = f"{size(found.unique_bytes)}, if what they share counts each time {size(found.logical_bytes)}"
    room = f", of which {size(found.overhead_bytes)} are room for writing and btrfs's own"
    told = found.pool_bytes + found.hot_bytes + found.stored_bytes + found.applied_bytes
    told += found.names_bytes + found.logs_bytes
    return [
        ("captures and sessions", shared),
        ("kept of the machine's files", size(found.applied_bytes)),
        ("pool of files", f"{size(found.pool_bytes)}{room if found.overhead_bytes else ''}"),
        ("processes, terminals", size(found.hot_bytes + found.memory_bytes)),
        *([("of these in memory yet", size(found.memory_bytes))] if found.memory_bytes else []),
        ("store", f"{size(found.stored_bytes)}, {'encrypted' if found.encrypted else 'not encrypted'}"),
        ("names.db", size(found.names_bytes)),
        ("logs", size(found.logs_bytes)),
        ("CRIU, reserve, others", size(max(0, found.home_bytes - told))),
        ("the home", f"{size(found.home_bytes)}; {size(found.free_bytes)} are free on its disk"),
        *(
            ("mounted", f"{short(one['capture'])} at {one['folder']}, until 'umount {one['folder']}'")
            for one in found.mounted
        ),
    ]
