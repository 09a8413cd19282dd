"""`waypoint daemon run|stop|status|logs`."""

import contextlib
import os
import select
import signal
from collections import deque
from collections.abc import Iterable, Iterator

from waypoint.cli.output import note, print_json, print_lines, write_all
from waypoint.client.address import find_home
from waypoint.client.daemon_start import start_daemon
from waypoint.client.sdk import Client
from waypoint.model.errors import Failed, HostLacks, StateConflict, UsageProblem
from waypoint.model.paths import log_path, older_log_path, socket_path, spelled
from waypoint.model.rendering import size
from waypoint.model.verbs import Given


def run(given: Given) -> int:
    """Start the daemon if it is not running, and wait until a signal to this process or another client stops it. A
    daemon that ends in another way is started again.
    """
    client = Client(given.text("home"))
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    while True:
        supervisor = start_daemon(client.home)
        if not supervisor:
            continue  # a new supervisor is replacing the old one
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
        if not os.path.exists(socket_path(client.home)):  # the daemon was stopped on purpose
            return 0


def stop(given: Given) -> int:
    Client(given.text("home")).stop_daemon()
    return 0


def status(given: Given) -> int:
    """Raises StateConflict (exit status 4) if the daemon is not running."""
    client = Client(given.text("home"))
    found = client.running()
    if found is None:
        next_step = "nothing: the next command that needs the daemon starts it"
        raise StateConflict(
            "ask", f"the daemon of {client.home}", "it is not running", next_step, code="daemon-not-running"
        )
    if given.flag("json"):
        print_json(found)
        return 0
    facts = {
        "home": found.home,
        "pid": str(found.pid),
        "version": found.version,
        "sessions": str(found.sessions),
        "since": found.started,
        **({"standbys": f"{found.standbys}, {size(found.standby_bytes)} of memory"} if found.standbys else {}),
    }
    for name, value in facts.items():
        print_lines([f"{name:<10}{value}"])
    return 0


def logs(given: Given) -> int:
    home, limit = find_home(given.text("home")), given.number("limit")
    older, newer = older_log_path(home), log_path(home)
    try:
        if given.flag("follow"):
            with open(newer, "rb") as file:
                lines = sum(1 for _ in file)
            left = None if limit is None else max(0, limit - lines)
            _print(_lines([older]), left)
            # `tail` waits by inotify, and continues with the new file when the old one is renamed.
            start = "+1" if limit is None else str(min(limit, lines))
            os.execvp("tail", ["tail", "-q", "-n", start, "-F", "--", newer])
        _print(_lines([older, newer]), limit)
    except PermissionError as error:
        next_step = f"sudo {spelled(home, 'daemon', 'logs')}"
        raise HostLacks("read", newer, error.strerror or "", next_step) from error
    except FileNotFoundError as error:
        if error.filename is None:  # execvp names no file
            raise Failed("follow", newer, "the program tail is not installed", "install coreutils") from error
        said, next_step = "there is no log in this home", "name the home: waypoint --home DIR daemon logs"
        raise UsageProblem("read", newer, said, next_step) from error
    return 0


def _lines(paths: list[str]) -> Iterator[bytes]:
    """Yield the lines of the files, one file after the other. Of several files, the last one must exist."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                yield from file
        except FileNotFoundError:
            if path == paths[-1] and len(paths) > 1:
                raise


def _print(lines: Iterable[bytes], limit: int | None) -> None:
    """Print the last `limit` lines; None: all."""
    for line in lines if limit is None else deque(lines, maxlen=limit):
        write_all(1, memoryview(line))
