"""Clients that keep a daemon busy: they ask for long lists and stream a scrollback without end.

They do not parse the answers, so that most of the cost is the daemon's.
"""

import contextlib
import subprocess
import sys
from typing import Self

import msgspec

from tests.homes import Home
from waypoint.client.sdk import Client
from waypoint.model.ids import new_id
from waypoint.model.paths import socket_path
from waypoint.model.records import Ref
from waypoint.records.names import Names

# Sends its requests in turn, without end, and writes a byte to stdout after each answer.
_CLIENT = """
import itertools, os, socket, sys
path, requests = sys.argv[1], [word.encode().replace(b"|", b"\\r\\n") for word in sys.argv[2:]]
for request in itertools.cycle(requests):
    with socket.socket(socket.AF_UNIX) as talk:
        talk.connect(path)
        talk.sendall(request)
        while talk.recv(1 << 20):
            continue
    os.write(1, b".")
"""
_GET = "GET {target} HTTP/1.1|Host: waypoint|Connection: close||"
_STREAM = "POST {target} HTTP/1.1|Host: waypoint|Connection: Upgrade|Upgrade: waypoint-stream|Content-Length: 2||{{}}"


def fill_history(home: Home, capture: str, count: int) -> None:
    """Record a chain of `count` captures like `capture`, each with a branch and an operation; the daemon is stopped."""
    Client(home.path).stop_daemon()
    names = Names(home.path / "names.db")
    with contextlib.closing(names):
        last = names.capture(capture)
        for number in range(count):
            last = msgspec.structs.replace(last, id=new_id(), parents=[last.id], created=last.created + 0.001)
            with names.change("bench") as change:
                change.add(last)
                change.create(f"filler-{number}", Ref(kind="branch", capture=last.id, created=last.created))


class BusyClients:
    """Three clients inside a `with` block: one lists captures and branches, one operations and sessions, one streams
    the scrollback of `branch`.
    """

    def __init__(self, home: Home, branch: str) -> None:
        self._socket = socket_path(str(home.path))
        self._requests = [
            [_GET.format(target="/v1/captures?all=1"), _GET.format(target="/v1/branches")],
            [_GET.format(target="/v1/operations"), _GET.format(target="/v1/sessions?all=1")],
            [_STREAM.format(target=f"/v1/sessions/{branch}/logs")],
        ]

    def __enter__(self) -> Self:
        """Returns when each client has an answer to each of its requests."""
        command = [sys.executable, "-I", "-S", "-c", _CLIENT, self._socket]
        self._clients = [
            subprocess.Popen([*command, *requests], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for requests in self._requests
        ]
        for client, requests in zip(self._clients, self._requests, strict=True):
            assert client.stdout is not None
            if client.stdout.read(len(requests)) != b"." * len(requests):
                raise RuntimeError("a client of the benchmark got no answer")
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.kill()
            client.communicate()
