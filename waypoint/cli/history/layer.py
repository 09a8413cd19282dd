"""`waypoint layer`: `list`, `get` and `attach`."""

from waypoint.cli.output import print_json, print_lines, tell
from waypoint.cli.tables import print_table, short, size
from waypoint.client.sdk import Client
from waypoint.model.names import parse_attached, parse_kind
from waypoint.model.verbs import Given

_STDOUT = 1


def run(given: Given) -> int:
    """List what is attached. Returns the exit status. Raises WaypointError."""
    found = Client(given.text("home")).layers.list(given.required("name"))
    if given.flag("json"):
        print_json(found)
    else:
        rows = [
            (
                one.kind,
                size(one.size_bytes),
                str(one.files),
                "folder" if one.is_folder else "file",
                short(one.digest),
            )
            for one in found
        ]
        print_table(("KIND", "SIZE", "FILES", "", "DIGEST"), rows, right=frozenset({"SIZE", "FILES"}))
    return 0


def get(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    layers, name, kind = Client(given.text("home")).layers, given.required("name"), parse_kind(given.required("kind"))
    dest = given.required("dest")
    if dest == "-":
        layers.pour(name, kind, _STDOUT)
    else:
        layers.get(name, kind, dest, force=given.flag("force"))
    return 0


def attach(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    from waypoint.cli import progress  # loads threads, which the others do without

    layers = Client(given.text("home")).layers
    wanted = parse_attached(given.texts("attach"))
    with progress.shown("attach") as bar:
        made = layers.attach(given.required("name"), wanted, sent=bar.add)
    if given.flag("json"):
        print_json(made)
    else:
        print_lines([f"{made.name}  {short(made.capture)}  {' '.join(one.kind for one in made.layers)}"])
    for one in made.layers:
        tell(f"left out of {one.kind}", one.left_out if one.kind in wanted else [])
    return 0
