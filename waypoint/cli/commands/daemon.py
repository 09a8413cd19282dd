"""`waypoint daemon run|stop|status`."""

import contextlib
import os
import select
import signal

from waypoint.cli.output import note, print_json, print_lines
from waypoint.client.daemon_start import start_daemon
from waypoint.client.sdk import Client
from waypoint.model.errors import StateConflict
from waypoint.model.paths import socket_path
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Start the daemon if it does not run, and wait until a signal to this process or another client has stopped it. A
    daemon that ends otherwise is started again.

    Returns the exit status. Raises WaypointError.
    """
    client = Client(given.text("home"))
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    while True:
        supervisor = start_daemon(client.home)
        if not supervisor:
            continue  # a new supervisor is just replacing the old one
        note(f"serving {client.home}")
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            ended = os.pidfd_open(supervisor)
            try:
                if reader in select.select([ended, reader], [], [])[0]:
                    client.stop_daemon()
                    select.select([ended], [], [])
                    return 0
            finally:
                os.close(ended)
        if not os.path.exists(socket_path(client.home)):  # gone: the daemon was stopped on purpose
            return 0


def stop(given: Given) -> int:
    """Returns the exit status. Raises WaypointError."""
    Client(given.text("home")).stop_daemon()
    return 0


def status(given: Given) -> int:
    """Returns the exit status. Raises WaypointError; StateConflict (exit status 4) if the daemon does not run."""
    client = Client(given.text("home"))
    found = client.running()
    if found is None:
        next_step = "none is needed: it starts with the next command that needs it"
        raise StateConflict("ask", f"the daemon of {client.home}", "it does not run", next_step)
    if given.flag("json"):
        print_json(found)
        return 0
    facts = {
        "home": found.home,
        "pid": str(found.pid),
        "version": found.version,
        "sessions": str(found.sessions),
        "since": found.started,
    }
    for name, value in facts.items():
        print_lines([f"{name:<10}{value}"])
    return 0
