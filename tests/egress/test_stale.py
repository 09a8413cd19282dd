"""Ending the connections that a session has from before keeps no other session waiting."""

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator

import pytest

from waypoint.egress import stale
from waypoint.linux.net import sockets, tcp_connections
from waypoint.linux.net.tcp_connections import TcpConnection
from waypoint.processes import ports


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that are looked at, where one connection is open, in none of them. Each look takes 0.4 s."""
    pids: list[int] = []
    clock = 0.0

    def look(found: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        nonlocal clock
        for pid in found:
            pids.append(pid)
            clock += 0.4
            yield 1, pid, 0

    one = TcpConnection(socket.inet_aton("10.77.0.2"), 1, socket.inet_aton("192.0.2.1"), 2, inode=7)
    monkeypatch.setattr(sockets, "open_own_table", contextlib.nullcontext)
    monkeypatch.setattr(tcp_connections, "outside", lambda _table: [one])
    monkeypatch.setattr(ports, "open_sockets", look)
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    return pids


def test_no_longer_is_looked_for_them_than_others_can_wait(looked_at: list[int]) -> None:
    stale.end(lambda: range(1000))
    assert looked_at == [0, 1, 2]
