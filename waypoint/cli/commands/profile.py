"""`waypoint profile`."""

import dataclasses
import os

from waypoint.cli.output import complain, note, print_json, print_lines
from waypoint.cli.tables import print_table
from waypoint.client.sdk import Client
from waypoint.model.errors import UnknownName, UsageProblem, from_json
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """`profile list`. Returns the exit status. Raises WaypointError, as the functions below."""
    found = Client(given.text("home")).profiles.all()
    if given.flag("json"):
        print_json(found)
        return 0
    rows = [(one.name, "the home" if one.is_own else "Waypoint", " ".join(one.programs)) for one in found.profiles]
    print_table(("PROFILE", "FROM", "PROGRAMS"), rows)
    for problem in found.problems:
        complain(str(from_json(problem)))
    return 0


def show(given: Given) -> int:
    client, name = Client(given.text("home")), given.required("name")
    found = next((one for one in client.profiles.all().profiles if one.name == name), None)
    if found is None:
        raise UnknownName("show", f"profile {name!r}", "there is none of this name", "see 'waypoint profile list'")
    if given.flag("json"):
        print_json(found)
    else:
        print_lines(found.text.rstrip("\n").split("\n"))
    return 0


def test(given: Given) -> int:
    client, file, branch = Client(given.text("home")), given.text("file"), given.text("branch")
    processes = None
    if file is not None or branch is not None:
        text = _read(file) if file is not None else None
        processes = client.profiles.test(os.path.basename(file or "").removesuffix(".toml"), text, branch)
    problems = client.profiles.all().problems if file is None else []
    if given.flag("json"):
        rows = None if branch is None else [dataclasses.asdict(one) for one in processes or []]
        print_json({"problems": problems, "processes": rows})
    else:
        for problem in problems:
            complain(str(from_json(problem)))
        if file is not None:
            note(f"{file} is a profile")
        if branch is not None:
            found = [(str(one.pid), one.profile or "-", one.command) for one in processes or []]
            print_table(("PID", "PROFILE", "COMMAND"), found, right=frozenset({"PID"}))
    return 1 if problems else 0


def _read(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageProblem("read the profile", file, said, "name a file that you may read") from error
