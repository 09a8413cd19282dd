"""`waypoint ps`."""

import dataclasses

import click

from waypoint.cli.options import client_option, json_option
from waypoint.cli.render import count, duration, print_json, print_table, size
from waypoint.client.facts import SessionFacts
from waypoint.client.sdk import Client

HEADINGS = ("BRANCH", "STATE", "PID", "UP", "MEMORY", "PROCESSES", "FILES", "ATTACHED", "USER")
_NUMBERS = frozenset({"PID", "UP", "MEMORY", "PROCESSES", "FILES", "ATTACHED"})


@click.command("ps", epilog="Example: waypoint ps --all")
@click.option("-a", "--all", "all_branches", is_flag=True, help="Also branches that could be started again.")
@json_option
@client_option
def command(client: Client, all_branches: bool, as_json: bool) -> None:
    """List live sessions.

    FILES is what the session has changed on disk. A branch is `ended` if its files were kept, `lost` if it died with
    the machine.
    """
    sessions = client.sessions(all=all_branches)
    if as_json:
        print_json([dataclasses.asdict(session) for session in sessions])
    elif sessions:
        print_table(HEADINGS, [_row(session) for session in sessions], right=_NUMBERS)
    else:
        click.echo("no sessions; 'waypoint shell' starts one", err=True)


def _row(session: SessionFacts) -> tuple[str, ...]:
    return (
        session.branch,
        session.state,
        count(session.pid),
        duration(session.uptime_s),
        size(session.memory_bytes),
        count(session.processes),
        size(session.upper_bytes),
        count(session.attached),
        session.user or "-",
    )
