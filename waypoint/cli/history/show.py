"""`waypoint show`."""

from collections.abc import Mapping

import click

from waypoint.cli.output import print_json
from waypoint.cli.tables import age, one_line, size
from waypoint.client.sdk import Client
from waypoint.model.errors import WaypointError
from waypoint.model.facts import CaptureFacts
from waypoint.model.verbs import Given

_WIDTH = 13


def run(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    client = Client(given.text("home"))
    capture = client.history.show(given.required("name"))
    if given.flag("json"):
        print_json(capture)
        return 0
    for heading, value in [*_facts(capture), *_left_out(client, capture, given.required("name"))]:
        if value:
            click.echo(f"{heading:<{_WIDTH}}{value}")
    return 0


def _left_out(client: Client, capture: CaptureFacts, name: str) -> list[tuple[str, str]]:
    """What of the machine is not in the live session, if `name` is a branch that has one."""
    if name != capture.branch and name not in capture.names:  # an id
        return []
    try:
        found = client.session(name).refresh().left_out
    except WaypointError:  # it is not live, or is a checkpoint's name
        return []
    return [("not in it", one_line(line)) for line in found or []]


def _facts(capture: CaptureFacts) -> list[tuple[str, str]]:
    """Headings and values. A line with an empty value is not printed."""
    layers = [(f"  {kind}", _layer(layer)) for kind, layer in capture.layers.items() if layer is not None]
    return [
        ("capture", capture.capture),
        ("image", capture.image or ""),
        ("names", ", ".join(capture.names)),
        ("branch", capture.branch),
        ("parents", ", ".join(capture.parents)),
        ("tier", f"{capture.tier}{', all that it kept was removed' if capture.removed else ''}"),
        ("created", f"{capture.created} ({age(capture.created)} ago)"),
        ("reason", capture.reason),
        ("message", one_line(capture.message)),
        ("paused", "" if capture.paused_ms is None else f"{capture.paused_ms:.0f} ms"),
        ("exit", "" if capture.exit is None else str(capture.exit)),
        ("base", capture.base),
        ("user", capture.user),
        ("folder", one_line(capture.cwd)),
        ("machine", ", ".join(capture.machine.values())),
        ("environment", " ".join(map(one_line, capture.environment))),
        ("layers", " "),
        *layers,
        *(("degraded", one_line(item)) for item in capture.degraded),
    ]


def _layer(layer: Mapping[str, object]) -> str:
    """The facts about a layer in words. Fields that this program does not know are shown with their names."""
    facts = dict(layer)
    stored = facts.pop("size_bytes", None)
    programs = facts.pop("programs", None)
    words = [size(stored)] if isinstance(stored, int) else []
    if isinstance(programs, list):
        words.append(" ".join(one_line(str(program)) for program in programs))
    words += [f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value is not None]
    return ", ".join(words) or "kept"
