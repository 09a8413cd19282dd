"""Ports of sessions that are published on the machine: they lead to the branch's session, whatever happens to it."""

import json
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from tests.acceptance.sessions import session
from tests.homes import Home
from tests.waiting import DEADLINE_S, wait_until
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

INNER = 8000
SERVER = """
import socket, threading
def serve(one):
    try:
        while one.recv(1):
            one.sendall(open("/root/word").read().encode())
    except ConnectionResetError:
        open("/root/reset", "w").close()
server = socket.create_server(("127.0.0.1", 8000))
open("/root/ready", "w").close()
while True:
    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""
START = "echo first >/root/word; python3 /root/s.py & until [ -e /root/ready ]; do sleep 0.02; done"


@pytest.fixture
def branch(home: Home) -> Iterator[str]:
    """A session with a server on its loopback, whose port is published. The server answers with a word in a file."""
    with session(home, "root", "--publish", f"0:{INNER}") as name:
        home.must("run", "-i", "-b", name, "--", "sh", "-c", "cat >/root/s.py", stdin=SERVER.encode())
        home.must("exec", "-b", name, "--", START)
        yield name


def outer_port(home: Home, branch: str) -> int:
    return int(home.must("port", branch, str(INNER)).stdout.rpartition(":")[2])


def reach(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), DEADLINE_S)


def word(port: int, host: str = "127.0.0.1") -> str:
    with reach(port, host) as one:
        one.sendall(b"?")
        return one.recv(100).decode().strip()


def programs(home: Home, branch: str) -> list[int]:
    """The pids of the programs that forward to the branch's session."""
    ident = Client(home.path).session(branch).refresh().id
    return [one["pid"] for one in json.loads((home.runtime / "sessions" / str(ident) / "ports.json").read_bytes())]


def test_a_published_port_leads_to_the_session_after_restore_fork_and_stop(home: Home, branch: str) -> None:
    port = outer_port(home, branch)
    assert (word(port), word(port, "::1")) == ("first", "first")
    with reach(port) as held:
        held.sendall(b"?")
        assert held.recv(100) == b"first\n"
        home.must("checkpoint", f"{branch}.c", "-b", branch)
        held.sendall(b"?")
        assert held.recv(100) == b"first\n"  # the checkpoint has not ended the connection
        home.must("exec", "-b", branch, "--", "echo second >/root/word")
        (fork,) = home.must("fork", f"{branch}.c", f"{branch}-f", "--json").json()
        (forked,) = fork["ports"]
        assert forked["host_port"] != port
        assert (word(forked["host_port"]), word(port)) == ("first", "second")
        # In the copy, the connection that was open has no client any more.
        home.must("exec", "-b", f"{branch}-f", "--timeout", "60", "--", "until [ -e /root/reset ]; do sleep 0.02; done")
        home.must("restore", f"{branch}.c")
    assert (outer_port(home, branch), word(port)) == (port, "first")
    home.must("stop", "--files", branch, f"{branch}-f")
    with pytest.raises(ConnectionRefusedError):
        reach(port)
    home.must("shell", branch, "-d", "--user", "root")
    assert outer_port(home, branch) == port
    assert json.loads(home.must("ps", "--json").stdout)[0]["ports"][0]["host_port"] == port


def test_a_port_in_use_is_refused_before_anything_starts(home: Home, branch: str) -> None:
    port = outer_port(home, branch)
    refused = home.cli("shell", f"{branch}-u", "-d", "--publish", f"{port}:80", "--json")
    assert (refused.code, refused.json()["error"]["code"]) == (4, "port-in-use")
    assert branch in refused.stderr  # the branch whose session has the port
    assert f"{branch}-u" not in home.must("ps", "--all").stdout
    running = home.cli("shell", branch, "-d", "--publish", "0:90")
    assert (running.code, f"waypoint port {branch} PORT" in running.stderr) == (4, True), running.stderr
    assert home.cli("shell", f"{branch}-u", "-d", "--net", "host", "--publish", "0:90").code == 2


def test_ports_are_added_to_a_running_session_listed_and_closed(home: Home, branch: str) -> None:
    live = Client(home.path).session(branch)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = taken.getsockname()[1]
        assert live.publish(other)["host_port"] != other  # that number is in use: any other one is taken
    assert live.url(INNER) == f"http://127.0.0.1:{outer_port(home, branch)}"
    ports = {one["port"]: one for one in live.ports()}
    assert (ports[INNER]["program"], ports[other]["program"]) == ("python3", "")
    live.close_port(other)
    assert [one["port"] for one in home.must("port", branch, "--json").json()] == [INNER]
    assert home.cli("port", branch, str(other), "--close").code == 2
    for wrong in ("x", "0", "70000", "1:70000"):
        said = home.cli("port", branch, wrong).stderr
        assert "neither PORT, a number from 1 to 65535, nor [ADDRESS:]HOST:SESSION" in said, wrong
    assert word(outer_port(home, branch)) == "first"


def test_a_published_port_survives_the_end_of_the_daemon_and_of_the_forwarding_program(home: Home, branch: str) -> None:
    port = outer_port(home, branch)
    with reach(port) as held:
        os.kill(home.must("daemon", "status", "--json").json()["pid"], signal.SIGKILL)
        held.sendall(b"?")
        assert held.recv(100) == b"first\n"
    before = outer_port(home, branch), programs(home, branch)
    assert before[0] == port
    os.kill(before[1][0], signal.SIGKILL)
    assert word(port) == "first"  # it waits for the next program
    wait_until(lambda: programs(home, branch) not in ([], before[1]), "another program forwards")
