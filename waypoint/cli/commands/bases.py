"""`waypoint base create`, `list`, `show` and `rm`."""

import dataclasses

from waypoint.cli.building import built, dockerfile_of
from waypoint.cli.caller import absolute
from waypoint.cli.output import note, print_json, print_lines, wants_colour, warn
from waypoint.client.sdk import Client
from waypoint.model.errors import StateConflict
from waypoint.model.rendering import age, headed, short, table
from waypoint.model.verbs import Given


def create(given: Given) -> int:
    bases, name, force = Client(given.text("home")).bases, given.required("name"), given.flag("force")
    source = absolute(given.text("from") or "") if given.text("from") else None
    dockerfile = dockerfile_of(source) if source else None
    if source and dockerfile:
        if not force and any(one.name == name for one in bases.list()):
            said, next_step = "there is a base of this name", "choose another name, or replace it: --force"
            raise StateConflict("create", f"base {name}", said, next_step, code="name-taken")
        with built(dockerfile) as archive:
            made = bases.create(name, archive, label=source, force=force)
    else:
        made = bases.create(name, source, force=force)
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
    facts = dataclasses.asdict(found)
    facts |= facts.pop("config") or {}
    facts["ports"] = facts.pop("exposed_ports", "")
    facts |= {
        "created": f"{found.created} ({age(found.created)} ago)",
        "on_disk": "yes" if found.on_disk else "in the store only; the next session extracts it",
        "sessions": ", ".join(found.sessions) or "none",
    }
    rows = [(name, " ".join(fact) if isinstance(fact, list) else str(fact)) for name, fact in facts.items()]
    print_lines(headed([(name.replace("_", " "), fact) for name, fact in rows if fact]))
    return 0


def remove(given: Given) -> int:
    name = given.required("name")
    Client(given.text("home")).bases.remove(name)
    if given.flag("json"):
        print_json({"removed": [name]})
    return 0
