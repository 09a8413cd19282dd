"""`waypoint daemon run`."""

import contextlib
import os
import select
import signal

from waypoint.cli.output import note
from waypoint.client.daemon_start import start_daemon
from waypoint.client.sdk import Client
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
                if reader in _ready(ended, reader):
                    client.stop_daemon()
                    _ready(ended)
                    return 0
            finally:
                os.close(ended)
        if not os.path.exists(socket_path(client.home)):  # gone: the daemon was stopped on purpose
            return 0


def _ready(*fds: int) -> set[int]:
    """Wait until one of the descriptors can be read. Returns those that can be."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll()}
