"""A restore in place that meets something between its capture of the session and the record: the session goes on."""

import os
import resource
from collections.abc import Iterator

import pytest

from tests.homes import Home, open_home
from tests.session import ledger
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

SOCKETS = 400
HAS_PORTS = f"""
import socket, time
held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range({SOCKETS})]
for one in held:
    one.bind(("127.0.0.1", 0))
open("/srv/up", "w")
time.sleep(1000)
"""


@pytest.fixture
def home() -> Iterator[Home]:
    with open_home("fails") as made:
        yield made


def test_one_of_the_files_that_cannot_be_noted_changes_nothing(home: Home) -> None:
    live = Client(home.path).start("main")
    live.checkpoint("before")
    live.exec("kept=yes; echo new >/srv/file")
    (home.runtime / "sessions" / live.facts.id / "rewind.json").mkdir()
    refused = home.cli("restore", "before", "--only", "files")
    assert (refused.code, "cannot restore the files of" in refused.stderr) == (125, True)
    assert "Is a directory" in refused.stderr
    assert live.exec("echo $kept; cat /srv/file").output == b"yes\nnew\n"
    ledger.check(home)


def test_one_that_cannot_share_the_ports_of_the_session_leaves_it_running(home: Home) -> None:
    """On the machine's network, where the daemon takes a duplicate of each of its sockets."""
    client = Client(home.path)
    live = client.start("main", net="host")
    live.exec(f"python3 -c '{HAS_PORTS}' & until [ -e /srv/up ]; do :; done; kept=yes")
    live.checkpoint("before", tier="live")
    daemon = client.status().pid
    is_open, (_, most) = len(os.listdir(f"/proc/{daemon}/fd")), resource.prlimit(daemon, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon, resource.RLIMIT_NOFILE, (is_open + SOCKETS // 2, most))
    refused = home.cli("restore", "before")
    assert (refused.code, "Too many open files" in refused.stderr) == (125, True)
    assert (ledger.group_of(home) / live.facts.id / "cgroup.freeze").read_text() == "0\n"
    assert live.exec("echo $kept").output == b"yes\n"
    ledger.check(home)
