"""`waypoint branch [list|delete|rename]`."""

import dataclasses

import click

from waypoint.cli.options import client_option, json_option
from waypoint.cli.render import age, print_json, print_table, short
from waypoint.client.facts import BranchFacts
from waypoint.client.sdk import Client
from waypoint.model.errors import StateConflict, UnknownName


@click.group("branch", invoke_without_command=True, epilog="Example: waypoint branch; waypoint branch delete fix-1")
@json_option
@client_option
@click.pass_context
def command(context: click.Context, client: Client, as_json: bool) -> None:
    """List branches, delete them, rename one. Without a command: list."""
    if context.invoked_subcommand is None:
        _print(client.history.branches(), as_json)


@command.command("list", epilog="Example: waypoint branch list --json")
@json_option
@client_option
def list_(client: Client, as_json: bool) -> None:
    """List all branches: live or not, the capture that each goes on from, how old that is."""
    _print(client.history.branches(), as_json)


@command.command("delete", epilog="Example: waypoint branch delete --stop fix-1 fix-2")
@click.argument("names", metavar="BRANCH...", nargs=-1, required=True)
@click.option("--stop", is_flag=True, help="End the sessions of those that are live.")
@client_option
def delete(client: Client, names: tuple[str, ...], stop: bool) -> None:
    """Delete branches, all of them or none. Their captures stay; 'waypoint undo' brings a branch back."""
    known = {branch.name: branch for branch in client.history.branches()}
    for name in names:
        if name not in known:
            raise UnknownName("delete", f"branch {name}", "there is no such branch", "'waypoint branch' lists them")
        if known[name].live and not stop:
            raise StateConflict("delete", f"branch {name}", "it has a live session", "stop it first, or give --stop")
    for name in names:
        if known[name].live:
            client.session(name).stop()
    client.history.remove(*names)


@command.command("rename", epilog="Example: waypoint branch rename fix-1 fixed")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@client_option
def rename(client: Client, old: str, new: str) -> None:
    """Rename a branch that is not live."""
    client.history.rename(old, new)


def _print(branches: list[BranchFacts], as_json: bool) -> None:
    if as_json:
        print_json([dataclasses.asdict(branch) for branch in branches])
    elif branches:
        print_table(("BRANCH", "STATE", "TIP", "TIER", "AGE"), [_row(branch) for branch in branches])
    else:
        click.echo("no branches; 'waypoint shell' makes one", err=True)


def _row(branch: BranchFacts) -> tuple[str, ...]:
    state = "live" if branch.live else "ended"
    return branch.name, state, short(branch.tip), branch.tier or "-", age(branch.captured or branch.created)
