"""`waypoint attach`."""

import click

from waypoint.cli import terminal
from waypoint.cli.caller import require_terminal
from waypoint.cli.options import branch_argument, client_option
from waypoint.client.sdk import Client


@click.command("attach", epilog="Example: waypoint attach fix-1")
@branch_argument
@client_option
def command(client: Client, branch: str) -> int:
    """Show a live session on this terminal. Several may be attached to one.

    Ctrl-] d leaves it running; Ctrl-] twice sends one. Exit status: the shell's if it ends, 0 if it is left.
    """
    next_step = "use 'waypoint exec' to run a command in it, 'waypoint logs' to see it"
    require_terminal("attach to", f"branch {branch}", next_step)
    return terminal.attach(client.home, branch)
