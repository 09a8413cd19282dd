"""Unix connections to programs outside a session are kept by the session, closed in its copies, and stop no capture."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.restoring import in_process, new_name, restore_as, started
from tests.acceptance.sessions import OF_THE_BASE, make_host_folder
from tests.answers import unusual
from tests.homes import Home, open_home

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("criu", "own-criu"),
]

TALKER = Path(__file__).with_name("outside_talker.py")


@pytest.fixture
def folder() -> Iterator[Path]:
    with make_host_folder(OF_THE_BASE) as place:
        yield place


@pytest.fixture
def home(folder: Path) -> Iterator[Home]:
    with open_home("outside") as made:
        yield made


def connect(path: Path, said: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    connection.sendall(said)
    return connection


def test_connections_outside_are_closed_in_copies_only(home: Home, folder: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "server"))
    os.chmod(folder / "server", 0o777)
    server.listen()
    with server, started(home, "root", net="host", binds=[f"{folder}:/outside"]) as session:  # type: ignore[arg-type]
        session.run("sh", "-c", "cat >/root/talker.py", stdin=TALKER.read_bytes())
        session.exec("python3 /root/talker.py /outside </dev/null >/root/errors 2>&1 &")
        accepted, _ = server.accept()
        in_process(session, "until [ -S /outside/client ] || [ -s /root/errors ]; do sleep 0.02; done")
        client = connect(folder / "client", b"unread")
        in_process(session, "until [ -p /root/ready ]; do sleep 0.02; done; cat /root/ready")
        waiting = connect(folder / "client", b"")
        connect(folder / "client", b"gone").close()
        with accepted, client, waiting:
            accepted.sendall(b"early")
            checkpoint = new_name(session)
            degraded = session.checkpoint(checkpoint, tier="live").degraded
            found = sorted((one["code"], one["detail"]) for one in unusual(degraded))
            assert found == [("outside-socket", ""), ("outside-socket", ""), ("unaccepted-connections", "2")]
            for _fork in range(2):
                copy = restore_as(home, session, checkpoint, "fork")
                assert in_process(copy, "cat /root/asked") == "closed:early closed:unread\n"
            for connection, answer in ((accepted, b"heard."), (client, b".")):
                connection.sendall(answer)
            assert in_process(session, "cat /root/asked") == "earlyheard. unread.\n"
            assert (accepted.recv(9), client.recv(9)) == (b"word.", b"word.")
