"""`waypoint setup`."""

import json
import os
import subprocess
import sys

import click

import waypoint
from waypoint.cli.options import client_option
from waypoint.client.sdk import Client
from waypoint.model.errors import Failed, from_json

# The local work is not the client's: it is a program of its own, which says what it does in lines of JSON.
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(waypoint.__file__)), "daemon", "setup.py")


@click.command("setup", epilog='Example: sudo waypoint setup --user "$USER"')
@click.option("--check", is_flag=True, help="Only say what is there; exit status 3 if something is missing.")
@click.option("--remove", is_flag=True, help="End all sessions and remove the home with all that was kept.")
@click.option("--user", metavar="USER", help="Who may use it without sudo, besides root.")
@click.option("--group", metavar="GROUP", help="Whose members may use it without sudo.")
@click.option("--yes", is_flag=True, help="With --remove: do not ask.")
@client_option
def command(client: Client, check: bool, remove: bool, user: str | None, group: str | None, yes: bool) -> None:
    """Make this machine ready: a home with its pool of files, and a CRIU that works on this kernel.

    Needs root. May be run again at any time: it does what is missing and says what it changed. Whoever may use it can
    become root in a session, and with --bind on the machine: let in only people who may be root anyway.
    """
    if check and remove:
        raise click.UsageError("--check and --remove exclude each other")
    if check:
        _work("check", client.home)
    elif remove:
        if not yes and sys.stdin.isatty():
            click.confirm(f"End all sessions and throw away everything kept in {client.home}?", abort=True, err=True)
        _work("remove", client.home)
    else:
        _install(client, {"--user": user, "--group": group})


def _install(client: Client, options: dict[str, str | None]) -> None:
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    _work("install", client.home, *given)
    if given:
        client.stop_daemon()  # the next one lets them in
    status = client.status()
    click.echo(f"the daemon runs (pid {status.pid}); sessions: {status.sessions}", err=True)


def _work(verb: str, home: str, *options: str) -> None:
    """Run the program, say what it says. Raises the error that it reports."""
    criu = os.environ.get("WAYPOINT_CRIU")
    words = [verb, home, *options, *(["--criu", criu] if criu else [])]
    error: dict[str, object] = {}
    with subprocess.Popen([sys.executable, "-I", "-S", PROGRAM, *words], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        for line in program.stdout:
            facts = json.loads(line)
            if "say" in facts:
                click.echo(facts["say"], err=True)
            error = facts.get("error", error)
    if error:
        raise from_json(error)
    if program.returncode != 0:
        said = f"its program ended with status {program.returncode}"
        raise Failed("set up", home, said, "what it said is above; please report it")
