"""Every verb reports losses of its capture or restore: in text and JSON, outside and inside of the session."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.answers import texts
from tests.homes import Home
from tests.session.test_capture_refusals import NESTED
from waypoint.client import Client, Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

GONE = "without its processes: only its files and the command lines of its programs were kept"
LOST = f"the replaced session is kept {GONE}"
# Keeps an unread datagram. CRIU dumps the processes without the datagram.
UNREAD = """rm -f /srv/on; python3 -c 'import socket, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("127.0.0.1", 4242)); one.sendto(b"x", ("127.0.0.1", 4242))
open("/srv/on", "w").write("on"); time.sleep(1000)' & until [ -s /srv/on ]; do :; done"""
DROPPED = "udp 4242: "


@pytest.fixture
def session(home: Home, client: Client) -> Iterator[Session]:
    """A live session on branch main with a shell variable."""
    live = client.start("main", allow=["userns"])
    live.exec("kept=yes")
    yield live
    home.must("stop", "--all", "--discard")
    client.history.remove(*{name for capture in client.history.log(all=True) for name in capture.names})


@pytest.mark.requires("userns")
def test_every_verb_reports_what_it_did_not_keep_or_restore(home: Home, client: Client, session: Session) -> None:
    session.checkpoint("before", tier="live")
    session.exec(NESTED)
    taken = home.must("checkpoint", "less")
    assert "degraded: without its processes: " in taken.stderr
    forked = home.must("fork", "main", "f1")
    assert "degraded: without its processes: " in forked.stderr
    (fork,) = json.loads(home.must("fork", "main", "f2", "--json").stdout)
    assert fork["degraded"][0]["code"] == "no-processes"
    (copy,) = client.fork("before", "f3")
    assert copy.facts.degraded == []
    replaced = home.must("restore", "less", "-b", "f3")
    assert "degraded: without its processes: " in replaced.stderr
    replaced = home.must("restore", "before", "--lose-processes", "--json")
    first, *others = texts(json.loads(replaced.stdout)["degraded"])
    assert (first, len(others)) == (LOST, 1)
    assert others[0].startswith("of the replaced session: cannot be started again: sleep 1000: ")
    undone = home.must("undo")
    assert f"degraded: main: {GONE}" in undone.stderr
    again = home.must("undo", "--json")
    assert json.loads(again.stdout)["degraded"] == []
    assert client.session("f3").exec("echo $kept").output == b"yes\n", "the undo changed f3"


def test_losses_of_a_live_capture_are_reported_outside(home: Home, client: Client, session: Session) -> None:
    session.checkpoint("before", tier="live")
    session.exec(UNREAD)
    assert f"degraded: {DROPPED}" in home.must("checkpoint", "less").stderr
    (made,) = home.must("fork", "less", "x1", "--json").json()
    number = client.history.operations()[0].number
    assert made["degraded"][0]["text"].startswith(DROPPED)
    assert home.must("restore", "less", "--new", "x2").stderr.count(f"degraded: {DROPPED}") == 1
    ended = home.must("undo")  # ends x2, which has lost its datagram
    assert "degraded" not in ended.stderr
    home.must("exec", "-b", "x1", "--", UNREAD.replace("4242", "4243"))
    ended = home.must("undo", str(number))  # undo the fork that made x1
    assert "degraded: x1: of the ended session: udp 4243: " in ended.stderr
    replaced = home.must("restore", "before")
    assert f"degraded: of the replaced session: {DROPPED}" in replaced.stderr
    again = home.must("undo", "--json")
    assert again.json()["degraded"][0]["text"].startswith(f"main: {DROPPED}")
    assert again.json()["lost"] == []
    home.must("exec", "--", UNREAD.replace("4242", "4244"))
    [stopped] = home.must("stop", "main", "--checkpoint", "stopped", "--json").json()
    assert (stopped["tier"], stopped["degraded"][0]["subject"]) == ("live", "udp 4244")
    assert "degraded: udp 4244: " in home.must("shell", "main", "-d").stderr
    started = home.must("shell", "x3", "--from", "stopped", "-d", "--json")
    assert started.json()["degraded"][0]["subject"] == "udp 4244"
    home.must("exec", "--", UNREAD.replace("4242", "4245"))
    assert "degraded: udp 4245: " in home.must("stop", "main", "--checkpoint", "stopped-2").stderr


def test_losses_of_a_live_capture_are_reported_inside(home: Home, client: Client, session: Session) -> None:
    def inside(words: str) -> str:
        return session.exec(f"waypoint {words}").output.decode()

    session.exec(UNREAD)
    assert f"\ndegraded: {DROPPED}" in inside("checkpoint less")
    assert inside("fork less x1").startswith(f"x1\ndegraded: {DROPPED}")
    assert inside("restore less --new x2").startswith(f"x2\ndegraded: {DROPPED}")
    (made,) = json.loads(inside("fork less x3 --json"))
    (outside,) = home.must("fork", "less", "x4", "--json").json()
    assert made.keys() == outside.keys()
    assert made["degraded"] == outside["degraded"]
    said = inside("restore less --only files")
    assert re.search(
        r"\nreplaced: the session on main, kept as \w+, tier live; to get it back: waypoint undo -b main\n", said
    )
    assert f"\ndegraded: of the replaced session: {DROPPED}" in said
    assert json.loads(inside("restore less --only files --json"))["replaced"]["tier"] == "live"


@pytest.mark.requires("userns")
def test_programs_started_again_are_reported_for_forks_and_before_an_undo(
    home: Home, client: Client, session: Session
) -> None:
    session.exec(f"sleep 1234 & {NESTED}")
    home.must("checkpoint", "less")
    forked = home.must("fork", "less", "-n", "2")
    lost = [line for line in forked.stderr.splitlines() if line.startswith("lost: ")]
    assert len(lost) == 1, "the loss is the same in both forks, and reported once"
    assert "started again: sleep 1234\n" in forked.stderr
    inside = session.exec("waypoint fork less x1").output.decode()
    assert inside.startswith("x1\n")
    assert set(forked.stderr.splitlines()) == set(inside.splitlines()[1:])
    (made,) = json.loads(session.exec("waypoint fork less x2 --json").output)
    assert (made["respawned"], len(made["lost"])) == (["sleep 1234"], 1)
    home.must("stop", "--files", "x1")
    home.must("restore", "less", "-b", "main", "--lose-processes")
    undone = home.must("undo")
    kept = r"will be lost: main: its processes \(capture \w+ has only their command lines\)\n"
    more = "will be lost: main: cannot be started again: sleep 1000: "
    assert re.match(kept + more, undone.stderr), undone.stderr


@pytest.mark.requires("userns")
def test_an_undo_from_inside_that_loses_processes_needs_consent(home: Home, client: Client, session: Session) -> None:
    """The answer is printed when the undo is done, so consent must be given with the command."""
    session.checkpoint("before", tier="live")
    session.exec(f"kept=more; {NESTED}")
    session.exec("waypoint restore before --lose-processes")
    operations = client.history.operations()
    refused = client.session("main").exec("waypoint undo")
    assert refused.exit == 4
    said, step = refused.output.decode().splitlines()
    assert said.startswith(f"waypoint: cannot undo operation {operations[0].number} (restore): these would be lost: ")
    assert client.history.operations() == operations
    command = step.rpartition(": ")[2]
    assert client.session("main").exec(command).by == "waypoint", "the session was replaced"
    assert client.session("main").exec("echo $kept").output == b"more\n"
