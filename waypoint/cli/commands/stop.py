"""`waypoint stop`."""

import dataclasses

import click

from waypoint.cli.entry import complain
from waypoint.cli.options import branches_argument, client_option, json_option
from waypoint.cli.render import print_json
from waypoint.client.address import pick_branch
from waypoint.client.facts import Stopped
from waypoint.client.sdk import Client
from waypoint.model.errors import WaypointError


@click.command("stop", epilog="Example: waypoint stop fix-1 fix-2; waypoint stop fix-3 --checkpoint before-lunch")
@branches_argument
@click.option("-a", "--all", "stop_all", is_flag=True, help="Every live session.")
@click.option("--checkpoint", metavar="NAME", help="Keep its processes too, and name that NAME; of one session.")
@click.option("--discard", is_flag=True, help="Throw the session's files away instead of keeping them.")
@json_option
@client_option
def command(
    client: Client, named: list[str], stop_all: bool, checkpoint: str | None, discard: bool, as_json: bool
) -> int:
    """End sessions and keep their files: 'waypoint shell BRANCH' goes on from them."""
    if stop_all and named:
        raise click.UsageError("--all and names of branches exclude each other")
    if checkpoint is not None and (stop_all or len(named) > 1):
        raise click.UsageError("--checkpoint names what is kept of one session: give one branch")
    if stop_all:
        named = [session.branch for session in client.sessions()]
    elif not named:
        named = [pick_branch()]
    stopped: list[Stopped] = []
    code = 0
    for branch in named:  # the others too, if one cannot be stopped
        try:
            stopped.append(client.session(branch).stop(discard=discard, checkpoint=checkpoint))
        except WaypointError as error:
            complain(str(error))
            code = code or error.exit_code
    if as_json:
        print_json([dataclasses.asdict(one) for one in stopped])
    else:
        for one in stopped:
            click.echo(f"{one.branch}  {f'kept as {one.capture[:12]}' if one.capture else 'discarded'}")
    return code
