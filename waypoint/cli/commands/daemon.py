"""`waypoint daemon run|stop|status`."""

import dataclasses
import os
import select
import signal

import click

from waypoint.cli.options import client_option, json_option
from waypoint.cli.render import print_json
from waypoint.client.sdk import Client
from waypoint.client.start import start_daemon

EXIT_NOT_RUNNING = 4


@click.group("daemon", epilog="Example: waypoint daemon status")
def command() -> None:
    """The process that serves sessions. It starts when it is needed and starts again if it dies."""


@command.command("run", epilog="Example, in a service: ExecStart=waypoint daemon run")
@client_option
def run(client: Client) -> None:
    """Start the daemon if it does not run, and wait until it is stopped.

    SIGTERM and Ctrl-C stop it. Sessions go on.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    supervisor = 0
    while not supervisor:  # 0 while one takes over from another
        supervisor = start_daemon(client.home)
    click.echo(f"serving {client.home}", err=True)
    ended = os.pidfd_open(supervisor)
    if reader in select.select([ended, reader], [], [])[0]:
        client.stop_daemon()
        select.select([ended], [], [])


@command.command("stop", epilog="Example: waypoint daemon stop")
@client_option
def stop(client: Client) -> None:
    """Stop the daemon. Sessions go on; the next command starts it again."""
    client.stop_daemon()


@command.command("status", epilog="Example: waypoint daemon status --json")
@json_option
@client_option
def status(client: Client, as_json: bool) -> int:
    """Say whether the daemon runs, and since when. Exit status 4 if it does not."""
    found = client.running()
    if found is None:
        click.echo(f"the daemon of {client.home} does not run; it starts with the next command that needs it", err=True)
        return EXIT_NOT_RUNNING
    if as_json:
        print_json(dataclasses.asdict(found))
        return 0
    facts = {
        "home": found.home,
        "pid": str(found.pid),
        "version": found.version,
        "sessions": str(found.sessions),
        "since": found.started,
    }
    for name, value in facts.items():
        click.echo(f"{name:<10}{value}")
    return 0
