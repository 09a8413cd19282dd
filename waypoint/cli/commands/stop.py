"""`waypoint stop`."""

import dataclasses

import click

from waypoint.cli.entry import complain
from waypoint.cli.options import branch_option, client_option, json_option
from waypoint.cli.render import print_json
from waypoint.client.address import pick_branch
from waypoint.client.facts import Stopped
from waypoint.client.sdk import Client
from waypoint.model.errors import WaypointError


@click.command("stop", epilog="Example: waypoint stop fix-1 fix-2")
@click.argument("branches", metavar="[BRANCH]...", nargs=-1)
@branch_option
@click.option("-a", "--all", "stop_all", is_flag=True, help="Every live session.")
@click.option("--discard", is_flag=True, help="Throw the session's files away instead of keeping them.")
@json_option
@client_option
def command(
    client: Client, branches: tuple[str, ...], option: str | None, stop_all: bool, discard: bool, as_json: bool
) -> int:
    """End sessions and keep their files: 'waypoint shell BRANCH' goes on from them."""
    named = [pick_branch(branch) for branch in (*branches, *([option] if option else []))]
    if stop_all and named:
        raise click.UsageError("--all and names of branches exclude each other")
    if stop_all:
        named = [session.branch for session in client.sessions()]
    elif not named:
        named = [pick_branch()]
    stopped: list[Stopped] = []
    code = 0
    for branch in named:  # the others too, if one cannot be stopped
        try:
            stopped.append(client.session(branch).stop(discard=discard))
        except WaypointError as error:
            complain(str(error))
            code = code or error.exit_code
    if as_json:
        print_json([dataclasses.asdict(one) for one in stopped])
    else:
        for one in stopped:
            click.echo(f"{one.branch}  {f'kept as {one.capture[:12]}' if one.capture else 'discarded'}")
    return code
