"""Options and arguments that several commands share."""

import functools
from collections.abc import Callable
from typing import TypeVar

import click

from waypoint.client.address import pick_branch
from waypoint.client.sdk import Client

F = TypeVar("F", bound=Callable[..., object])


def client_option(command: F) -> Callable[..., object]:
    """`--home DIR`; the function gets a Client as `client`."""

    @click.option("--home", metavar="DIR", help="The home to use (default: $WAYPOINT_HOME).")
    @functools.wraps(command)
    def with_client(home: str | None, **parameters: object) -> object:
        return command(client=Client(home), **parameters)

    return with_client


def branch_option(command: F) -> F:
    """`-b BRANCH`, in addition to `branch_argument`."""
    text = "The session's branch (default: $WAYPOINT_BRANCH, else main)."
    return click.option("-b", "--branch", "option", metavar="BRANCH", help=text)(command)


def branch_argument(command: F) -> Callable[..., object]:
    """`[BRANCH]`, or `-b BRANCH`; the function gets the one that is meant as `branch`."""

    @click.argument("argument", metavar="[BRANCH]", required=False)
    @branch_option
    @functools.wraps(command)
    def with_branch(argument: str | None, option: str | None, **parameters: object) -> object:
        if argument is not None and option is not None and argument != option:
            raise click.UsageError(f"two branches were given: {argument} and {option}")
        return command(branch=pick_branch(argument if argument is not None else option), **parameters)

    return with_branch


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")(command)
