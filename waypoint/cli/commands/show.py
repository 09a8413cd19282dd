"""`waypoint show`."""

import dataclasses

import click

from waypoint.cli.options import client_option, json_option
from waypoint.cli.render import age, one_line, print_json, size
from waypoint.client.facts import CaptureFacts
from waypoint.client.sdk import Client

_WIDTH = 13


@click.command("show", epilog="Example: waypoint show before-upgrade")
@click.argument("name", metavar="NAME")
@json_option
@client_option
def command(client: Client, name: str, as_json: bool) -> None:
    """Tell all about one capture: its parents, what was kept of files, processes and terminal, and what was not.

    NAME is a checkpoint, a branch (its tip), or a capture's id or its beginning.
    """
    capture = client.history.show(name)
    if as_json:
        print_json(dataclasses.asdict(capture))
        return
    for heading, value in _facts(capture):
        if value:
            click.echo(f"{heading:<{_WIDTH}}{value}")


def _facts(capture: CaptureFacts) -> list[tuple[str, str]]:
    """Headings and values; an empty value is not worth a line."""
    layers = [(f"  {kind}", _layer(layer)) for kind, layer in capture.layers.items() if layer is not None]
    return [
        ("capture", capture.capture),
        ("image", capture.image or ""),
        ("names", ", ".join(capture.names)),
        ("branch", capture.branch),
        ("parents", ", ".join(capture.parents)),
        ("tier", capture.tier),
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


def _layer(layer: dict[str, object]) -> str:
    """What is known of it, in words. Fields that are not known here are shown as they are."""
    facts = dict(layer)
    stored = facts.pop("size_bytes", None)
    programs = facts.pop("programs", None)
    words = [size(stored)] if isinstance(stored, int) else []
    if isinstance(programs, list):
        words.append(" ".join(one_line(str(program)) for program in programs))
    words += [f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value is not None]
    return ", ".join(words) or "kept"
