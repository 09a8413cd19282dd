"""`waypoint log`."""

import dataclasses

import click

from waypoint.cli.graph import draw
from waypoint.cli.options import client_option, json_option, name_argument
from waypoint.cli.render import age, one_line, print_json, short, styled
from waypoint.client.facts import CaptureFacts
from waypoint.client.sdk import Client


@click.command("log", epilog="Example: waypoint log --graph --all")
@click.option("--graph", is_flag=True, help="Draw beside it which capture goes on from which.")
@click.option("-a", "--all", "everything", is_flag=True, help="Every capture there is, with a name or without.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="At most N captures.")
@json_option
@name_argument
@client_option
def command(client: Client, name: str, graph: bool, everything: bool, limit: int | None, as_json: bool) -> None:
    """List the captures that NAME goes back to, the newest first: where a session was, and can go again.

    NAME is a branch, a checkpoint, or a capture's id or its beginning. Behind a capture's id stand the names for it.
    """
    captures = client.history.log(name, all=everything, limit=limit)
    if as_json:
        print_json([dataclasses.asdict(capture) for capture in captures])
        return
    if not graph:
        for capture in captures:
            click.echo(_line(capture))
        return
    lines = {capture.capture: _line(capture) for capture in captures}
    for drawing, capture_id in draw({capture.capture: capture.parents for capture in captures}):
        click.echo(f"{drawing} {lines[capture_id]}" if capture_id else drawing)


def _line(capture: CaptureFacts) -> str:
    names = f" ({', '.join(styled(name, fg='green', bold=True) for name in capture.names)})" if capture.names else ""
    words = one_line(capture.message) or capture.reason
    return f"{styled(short(capture.capture), fg='yellow')}{names} {capture.tier} {age(capture.created)} ago  {words}"
