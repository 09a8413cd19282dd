"""`waypoint logs`."""

import os

import click

from shellwrap.screen_undo import ScreenUndo
from waypoint.cli.hot import write_all
from waypoint.cli.options import branch_argument, client_option
from waypoint.client.sdk import Client


@click.command("logs", epilog="Example: waypoint logs -f fix-1")
@click.option("-f", "--follow", is_flag=True, help="Go on with what the terminal shows from now on.")
@branch_argument
@client_option
def command(client: Client, branch: str, follow: bool) -> None:
    """Print what the session's terminal has shown, as far back as it is kept, byte for byte."""
    undo = ScreenUndo()
    is_terminal = os.isatty(1)
    try:
        for piece in client.session(branch).logs(follow=follow):
            write_all(1, memoryview(piece))
            if is_terminal:
                undo.feed(piece)
    finally:
        if is_terminal:
            write_all(1, memoryview(undo.undo()))
