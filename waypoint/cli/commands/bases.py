"""`waypoint base create`, `list`, `show` and `rm`."""

import dataclasses

from waypoint.cli.caller import absolute
from waypoint.cli.output import note, print_json, print_lines, wants_colour, warn
from waypoint.client.sdk import Client
from waypoint.model.rendering import age, headed, short, table
from waypoint.model.verbs import Given


def create(given: Given) -> int:
    bases, source = Client(given.text("home")).bases, given.text("from")
    made = bases.create(given.required("name"), source and absolute(source), force=given.flag("force"))
    if given.flag("json"):
        print_json(made)
        return 0
    print_lines([f"{made.name}  {short(made.id)}"])
    warn("left out", [one["text"] for one in made.left_out])
    return 0


def list_bases(given: Given) -> int:
    found = Client(given.text("home")).bases.list()
    if given.flag("json"):
        print_json(found)
    elif found:
        rows = [(one.name, short(one.id), age(one.created), one.source) for one in found]
        print_lines(table(("BASE", "ID", "AGE", "FROM"), rows, coloured=wants_colour()))
    else:
        note("no bases; 'waypoint base create NAME' makes one")
    return 0


def show(given: Given) -> int:
    found = Client(given.text("home")).bases.show(given.required("name"))
    if given.flag("json"):
        print_json(found)
        return 0
    facts = dataclasses.asdict(found) | {
        "created": f"{found.created} ({age(found.created)} ago)",
        "on_disk": "yes" if found.on_disk else "in the store only; the next session extracts it",
        "sessions": ", ".join(found.sessions) or "none",
    }
    print_lines(headed([(name.replace("_", " "), str(fact)) for name, fact in facts.items()]))
    return 0


def remove(given: Given) -> int:
    name = given.required("name")
    Client(given.text("home")).bases.remove(name)
    if given.flag("json"):
        print_json({"removed": [name]})
    return 0
