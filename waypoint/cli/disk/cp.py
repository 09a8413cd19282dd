"""`waypoint cp`."""

import os

from waypoint.cli.disk.file_names import FileSide, side_of
from waypoint.cli.output import print_json, tell, write_all
from waypoint.client.files.file_calls import FileCalls
from waypoint.client.sdk import Client
from waypoint.model.errors import Failed, UsageProblem, WaypointError
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Returns the exit status: 1 if something was left out. Raises WaypointError."""
    source, target = side_of(given.required("source")), side_of(given.required("target"))
    files = Client(given.text("home")).files
    if isinstance(source, FileSide) and target == "-":
        return _print(files, source, given)
    try:
        match source, target:
            case FileSide(), str():
                copied = files.copy_from(source.name, source.path, target)
            case str(), FileSide():
                copied = files.copy_to(source, target.name, target.path)
            case _:
                on = f"{given.required('source')} to {given.required('target')}"
                said = "one of them must be NAME:PATH, the other a path of the machine"
                step = "copy out of one session and into the other: waypoint cp NAME:PATH ./FILE"
                raise UsageProblem("copy", on, said, step)
    except OSError as error:
        raise _problem(error, given) from error
    if given.flag("json"):
        print_json(copied)
    tell("left out", copied.left_out)
    return 1 if copied.left_out else 0


def _print(files: FileCalls, source: FileSide, given: Given) -> int:
    """A file to stdout, as with `layer get` and `export`."""
    if given.flag("json"):
        raise UsageProblem("use", "--json", "stdout has the file", "name a place for the copy instead of -")
    for piece in files.read(source.name, source.path):
        write_all(1, memoryview(piece))
    return 0


def _problem(error: OSError, given: Given) -> WaypointError:
    """What is wrong on the machine's side."""
    on = f"{given.required('source')} to {given.required('target')}"
    where = f": {os.fsdecode(error.filename)}" if error.filename and not isinstance(error.filename, int) else ""
    is_path = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | FileExistsError)
    said, next_step = f"{error.strerror or error}{where}", "mend that, and copy again: what is whole is replaced"
    return UsageProblem("copy", on, said, next_step) if is_path else Failed("copy", on, said, next_step)
