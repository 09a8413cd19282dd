"""`waypoint undo`."""

import dataclasses

import click

from waypoint.cli.options import client_option, json_option
from waypoint.cli.render import print_json
from waypoint.client.sdk import Client


@click.command("undo", epilog="Example: waypoint op log -n 5 && waypoint undo 17")
@click.argument("number", metavar="[N]", required=False, type=click.IntRange(min=1))
@json_option
@client_option
def command(client: Client, number: int | None, as_json: bool) -> None:
    """Take back operation N of 'waypoint op log', or the last one that was not yet taken back.

    Names are what they were before it. A session that it ended is started again from what was kept, one that it
    replaced comes back, one that it began is ended.
    """
    before = {one.number: one for one in client.history.operations()}
    made = client.history.undo(number)
    if as_json:
        print_json(dataclasses.asdict(made))
        return
    undone = before.get(made.undoes or 0)
    click.echo(f"took back {undone.number} ({undone.verb}): {undone.undo}" if undone else f"took back {made.undoes}")
