"""What a session's own processes know of their session: whether it is a copy, and of which capture, and what it may."""

import json
import re

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import branch_of, inside
from tests.homes import Home
from tests.waiting import until_runs

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

ECHO = "echo \"[$WAYPOINT_RESTORED] $(sh -c 'echo [$WAYPOINT_RESTORED]')\""


branch = pytest.fixture(params=["person", "zsh_person"])(branch_of)


def alone(home: Home, branch: str) -> str:
    """What a process of its own has."""
    return home.must("run", "-b", branch, "--", "sh", "-c", "echo [$WAYPOINT_RESTORED]").stdout


def capture_of(home: Home, name: str) -> str:
    return str(home.must("show", name, "--json").json()["capture"])


@pytest.mark.parametrize("tier", ["live", "respawn", "files"])
def test_every_copy_knows_of_which_capture_it_is(home: Home, branch: str, tier: str) -> None:
    assert inside(home, branch, ECHO) == "[] []\n"
    assert alone(home, branch) == "[]\n"
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", tier)
    assert inside(home, branch, ECHO) == "[] []\n", "the original is no copy"
    first = capture_of(home, f"{branch}-cp")
    copy = f"{branch}-1"
    home.must("fork", f"{branch}-cp", copy)
    try:
        assert inside(home, copy, ECHO) == f"[{first}] [{first}]\n"
        assert alone(home, copy) == f"[{first}]\n"
        home.must("checkpoint", f"{branch}-cp2", "-b", copy, "--tier", tier)
        second = capture_of(home, f"{branch}-cp2")
        home.must("restore", f"{branch}-cp2", "-b", copy, "--lose-processes")
        assert inside(home, copy, ECHO) == f"[{second}] [{second}]\n"
        assert alone(home, copy) == f"[{second}]\n"
        status = json.loads(inside(home, copy, "waypoint status --json"))
        assert (status["restored"], status["tier"]) == (second, tier)
    finally:
        home.must("stop", copy, "--discard")


def test_who_has_changed_the_variable_keeps_it(home: Home, branch: str) -> None:
    inside(home, branch, "export WAYPOINT_RESTORED=mine")
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "live")
    home.must("restore", f"{branch}-cp", "-b", branch)
    assert inside(home, branch, ECHO) == "[mine] [mine]\n"


def test_a_program_that_is_started_again_knows_of_which_capture_it_is(home: Home, branch: str) -> None:
    inside(home, branch, f"sleep 1000 & {until_runs('sleep 1000')}")
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "respawn")
    home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
    environment = f"{until_runs('sleep 1000')}; "
    environment += "tr '\\0' '\\n' </proc/$(pgrep -fx 'sleep 1000')/environ | grep ^WAYPOINT_"
    first = capture_of(home, f"{branch}-cp")
    assert sorted(inside(home, branch, environment).split()) == [
        f"WAYPOINT_BRANCH={branch}",
        f"WAYPOINT_RESTORED={first}",
    ]


def test_a_checkpoint_with_json_returns_json_in_every_copy(home: Home, branch: str) -> None:
    said = inside(home, branch, f"out=$(waypoint checkpoint {branch}-cp --json); echo $out")
    first = json.loads(said)["capture"]
    assert "restored" not in json.loads(said)
    copy = f"{branch}-1"
    home.must("fork", f"{branch}-cp", copy)
    try:
        assert json.loads(inside(home, copy, "echo $out")) == {"restored": {"branch": copy, "capture": first}}
    finally:
        home.must("stop", copy, "--discard")


def test_the_status_tells_what_the_session_is_and_may(home: Home, person: Person) -> None:
    limits = ["--memory", "300M", "--pids", "200", "--cpus", "1.5"]
    home.must("shell", "knows", "-d", "--user", person.name, "--net", "none", *limits)
    try:
        said = inside(home, "knows", "waypoint status")
        assert re.match(r"branch knows\ntip none\nrestored no\nnetwork none\nlimits memory 300M, ", said)
        assert ", cpus 1.5, pids 200\n" in said
        found = json.loads(inside(home, "knows", "waypoint status --json"))
        assert list(found) == [
            *("branch", "tip", "restored", "tier", "net", "allow_net", "no_way_out", "limits", "unlimited"),
        ]
        assert (found["restored"], found["tier"], found["net"]) == (None, None, "none")
        assert found["limits"]["memory_bytes"] == 300 << 20
        home.must("checkpoint", "knows-cp", "-b", "knows")
        home.must("restore", "knows-cp", "-b", "knows")
        first = capture_of(home, "knows-cp")
        lines = inside(home, "knows", "waypoint status").splitlines()
        assert (lines[0], lines[2]) == ("branch knows", f"restored from {first}, tier live")
    finally:
        home.must("stop", "knows", "--discard")


def test_a_network_that_is_narrowed_is_told(home: Home) -> None:
    home.must("shell", "narrow", "-d", "--allow-net", "192.0.2.7,192.0.2.8")
    try:
        found = json.loads(inside(home, "narrow", "waypoint status --json"))
        assert (found["net"], found["allow_net"]) == ("private", ["192.0.2.7", "192.0.2.8"])
    finally:
        home.must("stop", "narrow", "--discard")
