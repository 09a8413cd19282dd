"""Who is about to be killed gives its ports to whoever binds them next, as far as there is time."""

import os
import socket

import pytest

from waypoint.processes import ports

pytestmark = [pytest.mark.privileged]


def reuses(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR))


def test_an_end_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes may have millions of files open, and a session that cannot be ended does not exist."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        monkeypatch.setattr(ports, "LET_GO_S", -1.0)
        ports.let_go([os.getpid()])
        assert not reuses(one)
        monkeypatch.setattr(ports, "LET_GO_S", 60.0)
        ports.let_go([os.getpid()])
        assert reuses(one)
