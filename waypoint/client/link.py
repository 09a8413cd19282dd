"""Requests to the daemon of a home, which is started if it is not running."""

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


def open_channel(home: str, target: str, body: object, *, stages: bool = False) -> wire.Channel:
    """Request a stream, without reading the answer. `stages`: as for `wire.Channel`.

    Raises HostLacks if no daemon is running and none can be started, or if this user may not use it; wire.Cut.
    """
    return reach(home, lambda path: wire.Channel(path, target, body, stages=stages))


def ask(home: str, method: str, target: str, body: object = None, *, may_repeat: bool = True) -> object:
    """Send one request and return its decoded answer.

    `may_repeat`: whether the request is sent again to the next daemon if this one dies before it answers. Raises the
    daemon's error, Failed if there was no answer, or the errors of `reach`.
    """
    return ask_status(home, method, target, body, may_repeat=may_repeat)[1]


def ask_status(
    home: str, method: str, target: str, body: object = None, *, may_repeat: bool = True
) -> "tuple[int, object]":
    """Send one request like `ask`; return the HTTP status and the decoded answer."""
    for is_last in (False, True):
        try:
            return reach(home, lambda path: wire.request_status(path, method, target, body))
        except wire.Cut as cut:
            if is_last or not may_repeat:
                raise _unanswered(home, method, target, cut) from cut
    raise AssertionError("unreachable")


def ask_running(home: str, method: str, target: str) -> object | None:
    """Send one request like `ask`, but if no daemon is running, return None instead of starting one."""
    try:
        return wire.request(socket_path(home), method, target)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except PermissionError as error:
        raise not_allowed(home) from error
    except wire.Cut as cut:
        raise _unanswered(home, method, target, cut) from cut


def quote_branch(branch: str) -> str:
    """A branch's name as one part of a request's path. "/" is the only legal character that needs quoting."""
    return branch.replace("/", "%2F")


def _unanswered(home: str, method: str, target: str, cut: wire.Cut) -> Failed:
    next_step = f"check whether the request was carried out: {spelled(home, 'op', 'log')}"
    if method == "GET":  # such a request changes nothing, so the operation log does not help
        next_step = f"see the daemon's log: {spelled(home, 'daemon', 'logs')}"
    return Failed("get an answer to", f"{method} {target}", str(cut), next_step, code="connection-lost")


def reach(home: str, act: "Callable[[str], T]") -> "T":
    """Call `act` with the path of the daemon's socket. If no daemon listens, start one and call `act` again.

    Raises HostLacks if no daemon can be started or this user may not use it, Failed if each started daemon exits.
    """
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            return act(socket_path(home))  # the first start of a home without root decides where the socket is
        except (FileNotFoundError, ConnectionRefusedError) as error:
            # A daemon may be stopped between its start and this call, so try more than once.
            if attempt == START_ATTEMPTS:
                next_step = f"see the daemon's log: {spelled(home, 'daemon', 'logs')}"
                raise Failed("reach", "the daemon", str(error), next_step, code="daemon-unreachable") from error
            from waypoint.client.daemon_start import start_daemon

            start_daemon(home)
        except PermissionError as error:
            raise not_allowed(home) from error
    raise AssertionError("unreachable")


def not_allowed(home: str) -> HostLacks:
    """The error for a user who may not use the daemon's socket."""
    from waypoint.model.users import user_name

    user = user_name(os.getuid())
    return HostLacks(
        "talk to",
        f"the daemon of {home}",
        "this user may not use its socket",
        f"use sudo ('sudo {spelled(home)} COMMAND'), or let user {user} use the home in place of its present user "
        f"(several users: --group): sudo {spelled(home, 'setup', '--user', user)}",
    )
