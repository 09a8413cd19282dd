"""What the launcher does when its daemon has died: it makes sure that another daemon serves the home.

That is the supervisor's work. But if the supervisor has died too, only the next client would start anything, and a
session that the daemon was capturing would stand still until somebody asks. So the launcher is that client.
"""

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from waypoint.launch.spec import Will
from waypoint.linux.tasks import cgroups, namespaces

_REQUEST = b"GET /v1/status HTTP/1.1\r\nHost: waypoint\r\nConnection: close\r\n\r\n"


class Bequest(NamedTuple):
    """A will, with a descriptor of the mount namespace in which its program runs."""

    will: Will
    mounts_fd: int


def carry_out(bequest: Bequest, groups: Sequence[str]) -> None:
    """Return when a daemon answers at the socket, or the socket's name is gone: somebody has stopped Waypoint. If
    nobody listens on the socket, become the program of the will, out of the home's `groups`, which are for sessions.

    Waits as long as somebody listens who does not answer. Raises OSError.
    """
    will = bequest.will
    while os.path.lexists(will.socket):
        try:
            if _is_answered(will.socket):
                return
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            for group in groups:
                cgroups.enter(os.path.dirname(os.path.dirname(group)))
            namespaces.setns(bequest.mounts_fd, namespaces.CLONE_NEWNS)
            os.execve(will.argv[0], will.argv, will.env)


def _is_answered(path: str) -> bool:
    """Ask for the status. False if whoever listened at the socket has ended without an answer."""
    with socket.socket(socket.AF_UNIX) as asked, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        asked.connect(path)
        asked.sendall(_REQUEST)
        return asked.recv(1) != b""
    return False
