"""Reaching the daemon of a home, which is started if it does not run."""

import os

from waypoint.client import wire
from waypoint.model.errors import Failed, HostLacks
from waypoint.model.paths import socket_path, spelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

START_ATTEMPTS = 3


def open_channel(home: str, target: str, body: object) -> wire.Channel:
    """Ask for a stream; the answer is still to be read from the channel.

    Raises HostLacks if there is no daemon and none can be started, or if this user may not talk to it; wire.Cut.
    """
    return reach(home, lambda path: wire.Channel(path, target, body))


def ask(home: str, method: str, target: str, body: object = None, *, may_repeat: bool = True) -> object:
    """One request and its decoded answer.

    `may_repeat`: the request does the same if it is made twice, so it is sent again to the next daemon if this one dies
    before it has answered. Raises the daemon's error, HostLacks as `open_channel` does, Failed if the answer never
    came.
    """
    return ask_status(home, method, target, body, may_repeat=may_repeat)[1]


def ask_status(
    home: str, method: str, target: str, body: object = None, *, may_repeat: bool = True
) -> "tuple[int, object]":
    """As `ask`; the answer's HTTP status comes first."""
    for is_last in (False, True):
        try:
            return reach(home, lambda path: wire.request_status(path, method, target, body))
        except wire.Cut as cut:
            if is_last or not may_repeat:
                raise unanswered(home, method, target, cut) from cut
    raise AssertionError("unreachable")


def ask_running(home: str, method: str, target: str) -> object | None:
    """As `ask`, but only of a daemon that runs already: returns None if no daemon runs."""
    try:
        return wire.request(socket_path(home), method, target)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except PermissionError as error:
        raise not_allowed(home) from error
    except wire.Cut as cut:
        raise unanswered(home, method, target, cut) from cut


def quote_branch(branch: str) -> str:
    """A branch's name, quoted as one part of a request's path. Of the characters of a legal name only "/" needs it."""
    return branch.replace("/", "%2F")


def unanswered(home: str, method: str, target: str, cut: wire.Cut) -> Failed:
    """The error for a request whose answer never came."""
    next_step = f"see what became of it: {spelled(home, 'op', 'log')}"
    if method == "GET":  # a GET changes nothing, so nothing is left to be found out
        next_step = f"see the daemon's log: {spelled(home, 'daemon', 'logs')}"
    return Failed("get an answer to", f"{method} {target}", str(cut), next_step)


def reach(home: str, act: "Callable[[str], T]") -> "T":
    """Call `act` with the path of the daemon's socket. If no daemon listens, start one and call `act` again.

    Raises HostLacks as `open_channel` does, Failed if no daemon stays up, and what `act` raises.
    """
    path = socket_path(home)
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            return act(path)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            # A daemon may be stopped between its start and this call, so starting is tried more than once.
            if attempt == START_ATTEMPTS:
                next_step = f"see the daemon's log: {spelled(home, 'daemon', 'logs')}"
                raise Failed("reach", "the daemon", str(error), next_step) from error
            from waypoint.client.daemon_start import start_daemon

            start_daemon(home)
        except PermissionError as error:
            raise not_allowed(home) from error
    raise AssertionError("unreachable")


def not_allowed(home: str) -> HostLacks:
    """What to tell a user whom the daemon's socket does not let in."""
    import pwd

    user = pwd.getpwuid(os.getuid()).pw_name
    return HostLacks(
        "talk to",
        f"the daemon of {home}",
        "this user may not use its socket",
        f"be root ('sudo {spelled(home)} COMMAND'); or be let in, in place of the user before (for several: --group, "
        f"with a group of theirs): sudo {spelled(home, 'setup', '--user', user)}",
    )
