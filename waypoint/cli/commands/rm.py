"""`waypoint rm`."""

import click

from waypoint.cli.options import client_option
from waypoint.client.sdk import Client


@click.command("rm", epilog="Example: waypoint rm before-upgrade")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@client_option
def command(client: Client, names: tuple[str, ...]) -> None:
    """Remove names, of checkpoints and of branches that are not live; all of them or none.

    The captures that they stood for stay and have their ids; 'waypoint undo' brings the names back.
    """
    client.history.remove(*names)
