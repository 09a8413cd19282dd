"""Options and arguments that several commands share."""

import functools
from collections.abc import Callable
from typing import TypeVar

import click

from waypoint.client.address import pick_branch
from waypoint.client.sdk import Client

F = TypeVar("F", bound=Callable[..., object])


def group_home() -> str | None:
    """The home that was named before the command: `waypoint --home DIR COMMAND`."""
    home = click.get_current_context().obj
    return home if isinstance(home, str) else None


def client_option(command: F) -> Callable[..., object]:
    """`--home DIR`; the function gets a Client as `client`."""

    @click.option("--home", metavar="DIR", help="The home to use (default: $WAYPOINT_HOME).")
    @functools.wraps(command)
    def with_client(home: str | None, **parameters: object) -> object:
        return command(client=Client(home or group_home()), **parameters)

    return with_client


def branch_option(command: F) -> F:
    """`-b BRANCH`, in addition to `branch_argument`."""
    text = "The session's branch (default: $WAYPOINT_BRANCH, else main)."
    return click.option("-b", "--branch", "option", metavar="BRANCH", help=text)(command)


def _one_name(metavar: str, parameter: str) -> Callable[[F], Callable[..., object]]:
    """An optional argument, or `-b BRANCH`; the function gets what is meant as `parameter`."""

    def add(command: F) -> Callable[..., object]:
        @click.argument("argument", metavar=metavar, required=False)
        @branch_option
        @functools.wraps(command)
        def with_name(argument: str | None, option: str | None, **parameters: object) -> object:
            if argument is not None and option is not None and argument != option:
                raise click.UsageError(f"two names were given: {argument} and {option}")
            meant = pick_branch(argument if argument is not None else option)
            return command(**{parameter: meant}, **parameters)

        return with_name

    return add


branch_argument = _one_name("[BRANCH]", "branch")
"""`[BRANCH]`, or `-b BRANCH`; the function gets the one that is meant as `branch`."""

name_argument = _one_name("[NAME]", "name")
"""`[NAME]`, or `-b BRANCH`; the function gets what is meant as `name`."""


def branches_argument(command: F) -> Callable[..., object]:
    """`[BRANCH]...`, or `-b BRANCH`; the function gets those that were given as the list `named`."""

    @click.argument("arguments", metavar="[BRANCH]...", nargs=-1)
    @branch_option
    @functools.wraps(command)
    def with_branches(arguments: tuple[str, ...], option: str | None, **parameters: object) -> object:
        named = [pick_branch(branch) for branch in (*arguments, *([option] if option else []))]
        return command(named=named, **parameters)

    return with_branches


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")(command)
