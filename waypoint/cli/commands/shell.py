"""`waypoint shell`."""

import dataclasses
import os
from typing import Any

import click

from shellwrap.local_terminal import terminal_size
from waypoint.cli import terminal
from waypoint.cli.options import branch_argument, client_option, json_option
from waypoint.cli.render import print_json
from waypoint.client.sdk import Client, Session


class WithCommandLine(click.Command):
    """What stands behind `--` is `command`; without it, click would take its first word as the branch."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        if "--" in args:
            place = args.index("--")
            args, words = args[:place], args[place + 1 :]
        rest = super().parse_args(ctx, args)
        ctx.params["command"] = words
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- CMD...]"]


@click.command(
    "shell",
    epilog="Examples: waypoint shell fix-1 --bind ~/project:/project; waypoint shell ci -d --net none -- make test",
    cls=WithCommandLine,
)
@click.option("--from", "from_name", metavar="NAME", help="Go on from the files of NAME (default: the branch's own).")
@click.option(
    "--base", metavar="DIR", help="What lies under the session: a root file system (default: this machine's)."
)
@click.option("--bind", "binds", metavar="HOST:PATH[:ro]", multiple=True, help="Share a path of this machine as it is.")
@click.option("--net", type=click.Choice(["private", "host", "none"]), help="The session's network (default: private).")
@click.option("--user", metavar="USER", help="Whose session it is (default: you, also under sudo).")
@click.option("--cwd", metavar="DIR", help="Where the shell starts (default: here).")
@click.option("-d", "--detach", is_flag=True, help="Start it and print its branch; do not show it.")
@json_option
@branch_argument
@client_option
def command(client: Client, branch: str, detach: bool, as_json: bool, **asked: object) -> int:
    """Start the branch's session, or attach to it if it is live.

    All that is done in it happens on a copy-on-write view of the machine. When its shell is left the session ends and
    its files are kept; the next 'waypoint shell BRANCH' goes on from them. Ctrl-] d leaves the session running.
    Exit status: the shell's.
    """
    if as_json and not detach:
        raise click.UsageError("--json needs -d: otherwise stdout is the session's")
    if not detach:
        next_step = f"start it with 'waypoint shell {branch} -d' and use 'waypoint exec -b {branch} -- CMD'"
        terminal.require_terminal("show", f"branch {branch}", next_step)
    session = client.start(branch, **_setting(asked))
    _tell_left_out(session)
    if not detach:
        return terminal.attach(session)
    if as_json:
        print_json(dataclasses.asdict(session.facts))
    else:
        click.echo(session.branch)
    return 0


def _setting(asked: dict[str, Any]) -> dict[str, Any]:
    """The body of the request. What was not asked for is left to the daemon: a branch that goes on keeps its own."""
    setting = {name: value for name, value in asked.items() if value}
    if "binds" in setting:
        setting["binds"] = [_from_here(bind) for bind in setting["binds"]]
    if "base" in setting:
        setting["base"] = os.path.abspath(setting["base"])
    else:  # a folder of this machine, where the session has the same
        setting["cwd"] = os.path.abspath(setting.get("cwd") or os.curdir)
    # Under sudo the daemon sees root; whoever called sudo is meant.
    if "user" not in setting and os.geteuid() == 0 and os.environ.get("SUDO_UID"):
        setting["user"] = os.environ.get("SUDO_USER")
    rows, cols = terminal_size(0)
    return {**setting, "rows": rows, "cols": cols, "env": terminal.caller_env()}


def _from_here(bind: str) -> str:
    """HOST:PATH[:ro] with HOST as an absolute path."""
    host, colon, rest = bind.partition(":")
    return f"{os.path.abspath(host)}{colon}{rest}" if host else bind


def _tell_left_out(session: Session) -> None:
    for place in session.facts.left_out or []:
        click.echo(f"not in the session: {place}", err=True)
