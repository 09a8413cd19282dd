"""`waypoint op log`."""

import dataclasses

import click

from waypoint.cli.options import client_option, json_option
from waypoint.cli.render import age, print_json, print_table, short
from waypoint.client.facts import OperationFacts
from waypoint.client.sdk import Client


@click.group("op", epilog="Example: waypoint op log -n 10")
def command() -> None:
    """What was done here. Each operation that moved a name or a session has a number, for 'waypoint undo'."""


@command.command("log", epilog="Example: waypoint op log -n 10 && waypoint undo 17")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="At most N operations.")
@json_option
@client_option
def log(client: Client, limit: int | None, as_json: bool) -> None:
    """List operations, the newest first: what each moved, and what 'waypoint undo' of it would do, or why it cannot."""
    operations = client.history.operations(limit)
    if as_json:
        print_json([dataclasses.asdict(one) for one in operations])
    elif operations:
        rows = [(str(one.number), age(one.at), _verb(one), _moved(one), _undo(one)) for one in operations]
        print_table(("NUMBER", "AGE", "VERB", "MOVED", "UNDO"), rows, right=frozenset({"NUMBER", "AGE"}))
    else:
        click.echo("nothing was done yet", err=True)


def _verb(one: OperationFacts) -> str:
    return one.verb if one.undoes is None else f"{one.verb} of {one.undoes}"


def _moved(one: OperationFacts) -> str:
    names = [f"{name}: {short(before)} to {short(after)}" for name, (before, after) in one.moves.items()]
    sessions = [f"{branch} {_change(before, after)}" for branch, (before, after) in one.sessions.items()]
    return ", ".join([*names, *sessions]) or "-"


def _change(was_live: bool, is_live: bool) -> str:
    if was_live:
        return "replaced" if is_live else "ended"
    return "began"


def _undo(one: OperationFacts) -> str:
    if one.undone:
        return "was undone"
    return one.undo if one.undo is not None else f"no: {one.said}"
