"""`waypoint doctor`."""

import click

from waypoint.cli.options import client_option, json_option
from waypoint.cli.render import coloured, print_json, print_table
from waypoint.client.facts import Capability
from waypoint.client.sdk import Client

EXIT_HOST_LACKS = 3


@click.command("doctor", epilog="Example: sudo waypoint doctor")
@json_option
@client_option
def command(client: Client, as_json: bool) -> int:
    """Try everything that Waypoint needs of this machine, for real, on a throw-away session.

    Exit status 3 if a session cannot be started, or cannot be kept with its processes.
    """
    found = client.doctor()
    if as_json:
        print_json([_as_json(one) for one in found])
    else:
        rows = [(one.name, one.state, one.required_for, one.why) for one in found]
        print_table(("CAPABILITY", "STATE", "NEEDED FOR", "WHY"), rows)
        for one in found:
            if one.remedy and one.state != "ok":
                click.echo(f"\n{one.name}, {coloured(one.state)}: {one.remedy}")
    is_lacking = any(one.state == "missing" and one.required_for in ("session", "live") for one in found)
    return EXIT_HOST_LACKS if is_lacking else 0


def _as_json(one: Capability) -> dict[str, str]:
    return {
        "capability": one.name,
        "state": one.state,
        "why": one.why,
        "remedy": one.remedy,
        "required_for": one.required_for,
    }
