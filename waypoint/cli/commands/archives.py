"""`waypoint export` and `waypoint import`."""

from waypoint.cli.caller import absolute
from waypoint.cli.output import note, print_json, print_lines, warn
from waypoint.client.sdk import Client
from waypoint.model.rendering import short, size
from waypoint.model.verbs import Given


def export(given: Given) -> int:
    found = Client(given.text("home")).history.export(
        given.required("name"),
        absolute(given.required("file")),
        sign=_path(given, "sign"),
        oci_layers=not given.flag("no_oci_layers"),
    )
    if given.flag("json"):
        print_json(found)
    else:
        signed = ", signed" if found.signed else ""
        print_lines(
            [f"exported {found.name} to {found.path}: {size(found.size_bytes)}, {_count(found.captures)}{signed}"]
        )
        if found.exposes:
            note("the archive is not encrypted, though the home is: whoever has it can read everything in it")
    return 0


def import_archive(given: Given) -> int:
    found = Client(given.text("home")).history.import_(
        absolute(given.required("file")),
        given.text("as") or None,
        prefix=given.text("prefix") or "",
        require_signature=_path(given, "require_signature"),
    )
    if given.flag("json"):
        print_json(found)
    else:
        signed = ", signed with the required key" if found.signed else ""
        facts = f"tier {found.tier}, {_count(found.captures)}{signed}"
        print_lines([f"imported {' '.join(found.names)}  {short(found.capture)}: {facts}"])
        warn("sessions from it get", found.asks_for)
    return 0


def _path(given: Given, option: str) -> str | None:
    path = given.text(option)
    return absolute(path) if path else None


def _count(captures: int) -> str:
    return "1 capture" if captures == 1 else f"{captures} captures"
