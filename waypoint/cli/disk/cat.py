"""`waypoint cat`."""

from waypoint.cli.disk.file_names import FileSide, side_of
from waypoint.cli.output import write_all
from waypoint.client.sdk import Client
from waypoint.model.errors import UsageProblem
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError; OSError if stdout cannot be written."""
    file = given.required("file")
    side = side_of(file)
    if not isinstance(side, FileSide):
        raise UsageProblem("read", file, "it is not NAME:PATH", "name a capture or branch, and a file: NAME:PATH")
    for piece in Client(given.text("home")).files.read(side.name, side.path):
        write_all(1, memoryview(piece))
    return 0
