"""The runtime folder in /run is removed while the daemon runs: the next command recreates it, and nothing is lost."""

import shutil
import time
from collections.abc import Iterator

import pytest

from tests.homes import Home, open_home
from waypoint.client import Client
from waypoint.linux.tasks import pidfd

pytestmark = pytest.mark.privileged
LONGEST_S = 2.0  # how long the end of the old daemon and the start of a new one may take


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with open_home("removed") as home:
        yield home


def remove_folder(home: Home) -> None:
    shutil.rmtree(home.runtime)


@pytest.mark.soak(part="faults")
def test_the_next_command_works_at_once_and_sessions_continue(home: Home) -> None:
    home.must("shell", "-d")
    home.must("exec", "--", "mine=42; sleep 1000 & echo printed")
    session, daemon = home.must("ps", "--json").json()[0], Client(home.path).status().pid
    old = pidfd.open(daemon)
    remove_folder(home)
    began = time.monotonic()
    [found] = home.must("ps", "--json").json()
    assert time.monotonic() - began < LONGEST_S
    assert (found["id"], found["pid"], found["state"]) == (session["id"], session["pid"], "live")
    assert home.must("exec", "--", "echo $mine; jobs").stdout.splitlines()[0] == "42"
    assert "printed" in home.must("logs").stdout
    assert pidfd.wait_ended(old, 0)
    Client(home.path).session("main").exec("kill %1")
    home.must("stop", "--discard")


@pytest.mark.soak(part="faults")
def test_the_folder_can_be_removed_repeatedly_and_one_daemon_remains(home: Home) -> None:
    home.must("shell", "-d")
    home.must("exec", "--", "mine=1")
    for _ in range(3):
        remove_folder(home)
        assert home.must("exec", "--", "echo $mine").stdout == "1\n"
    status = Client(home.path).status()
    assert "another daemon serves this home" not in (home.path / "daemon.log").read_text()
    assert Client(home.path).status().pid == status.pid  # the same daemon still runs
    home.must("stop", "--discard")


def test_the_next_command_works_after_the_folder_was_moved_away(home: Home) -> None:
    aside = home.runtime.with_name(f"{home.id}.aside")
    home.must("shell", "-d")
    home.runtime.rename(aside)
    try:
        assert home.must("exec", "--", "echo still here").stdout == "still here\n"
    finally:
        shutil.rmtree(aside)
    home.must("stop", "--discard")


def test_a_running_command_is_not_run_twice_and_its_output_is_complete(home: Home) -> None:
    session = Client(home.path).start("flight")
    session.exec("mkfifo /tmp/go; echo 0 >/tmp/runs")
    seen: list[bytes] = []

    def note(piece: bytes) -> None:
        seen.append(piece)
        if b"begun" in piece:
            remove_folder(home)
            Client(home.path).session("flight").run("sh", "-c", "echo go >/tmp/go")

    done = session.exec("echo begun; echo run >>/tmp/runs; read -r x </tmp/go; echo ended", on_output=note)
    assert (done.exit, b"".join(seen).split()) == (0, [b"begun", b"ended"])
    assert session.exec("grep -c run /tmp/runs").output == b"1\n"
    session.stop(discard=True)
