"""The loop that forwards connections into a session, here within one network namespace."""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.waiting import DEADLINE_S
from waypoint.egress.forwarder import Forwarder
from waypoint.egress.published import parse
from waypoint.model.errors import UsageProblem
from waypoint.model.records import Published

MANY_BYTES = 3_000_000


@contextlib.contextmanager
def forwarding(port: int, most: int = 8) -> Iterator[int]:
    """Forward to `port`, with at most `most` connections at once. Yields the port from which that is done."""
    ended, end = os.pipe()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0)
    forwarder = Forwarder({listener: port}, ended, most)
    thread = threading.Thread(target=forwarder.run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        os.close(end)
        thread.join()
        os.close(ended)
        listener.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), DEADLINE_S)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(DEADLINE_S)
        yield made


def test_bytes_arrive_in_both_directions_and_an_end_of_data_leaves_the_other_direction_open(
    server: socket.socket,
) -> None:
    with forwarding(server.getsockname()[1]) as port, connected(port) as client:
        inner, _ = server.accept()
        inner.settimeout(DEADLINE_S)
        sending = threading.Thread(target=client.sendall, args=(bytes(MANY_BYTES),))
        sending.start()
        got = 0
        while got < MANY_BYTES:  # the client has to wait for this reader
            got += len(inner.recv(1 << 16))
        sending.join()
        client.shutdown(socket.SHUT_WR)
        assert inner.recv(1) == b""
        inner.sendall(b"answer")
        inner.close()
        assert client.recv(100) == b"answer"
        assert client.recv(100) == b""


def test_a_connection_without_a_server_is_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with forwarding(port) as outer, connected(outer) as client, pytest.raises(ConnectionResetError):
        client.recv(1)


def test_one_connection_too_many_closes_the_one_that_was_idle_the_longest(server: socket.socket) -> None:
    with forwarding(server.getsockname()[1], most=2) as port, connected(port) as first, connected(port) as second:
        kept = [server.accept()[0], server.accept()[0]]
        for client in (second, first):  # when the bytes of the first one have arrived, it was used last
            client.sendall(b"x")
            (arrived,), *_ = select.select(kept, [], [], DEADLINE_S)
            assert arrived.recv(1) == b"x"
        with connected(port) as third:
            third_inside, _ = server.accept()
            third.sendall(b"new")
            assert third_inside.recv(3) == b"new"
            assert second.recv(1) == b""
            third_inside.close()
        for one in kept:
            one.close()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8080:80", Published(session=80, host=8080)),
        ("0:80", Published(session=80)),
        ("127.0.0.2:8080:80", Published(session=80, host=8080, address="127.0.0.2")),
        ("[::1]:8080:80", Published(session=80, host=8080, address="::1")),
    ],
)
def test_a_port_is_parsed(text: str, meant: Published) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    "text", ["", "80", "80:0", "x:80", "80:65536", "localhost:8080:80", "8080:80:", "1:2:3", "²:80"]
)
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse(text)
