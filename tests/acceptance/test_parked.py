"""What a live or parked branch is asked for and cannot have at once is advised so that its programs go on, and so that
nothing is left out that was typed.
"""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.session.test_capture_refusals import NESTED

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu")]

SEEN = "echo $n; pgrep -c -f '[s]leep 6321' || :"


@pytest.fixture
def branch(home: Home) -> Iterator[str]:
    with session(home, "root", "--cwd", "/") as name:
        inside(home, name, "n=kept; sleep 6321 & true")
        yield name
        home.cli("rm", f"{name}-parked")


def steps(stderr: str) -> str:
    """The next step, as it is printed."""
    found = re.search(r"^  next: (.*)$", stderr, re.MULTILINE)
    assert found, stderr
    return found[1]


@pytest.mark.parametrize(
    ("options", "tier"),
    [
        pytest.param(words.split(), tier, id=words)
        for words, tier in (
            ("--pids 300 --memory 700M --cpus 1 --disk 1G", "live"),
            ("--allow-net 203.0.113.0/24", "live"),
            ("--publish 18231:80", "live"),
            ("--net none --pids 300", "respawn"),
            ("--allow userns", "respawn"),
            ("--cwd /usr", "respawn"),
            ("--shell /bin/sh", "respawn"),
            ("--pids 300 --tier respawn", "live"),
        )
    ],
)
def test_other_options_of_a_live_branch_are_had_with_its_programs(
    home: Home, branch: str, options: list[str], tier: str
) -> None:
    refused = home.cli("shell", branch, "-d", *options)
    said = steps(refused.stderr)
    again = "ask again with --tier respawn, which starts its programs again: " if tier == "respawn" else "ask again: "
    park = f"waypoint checkpoint NAME -b {branch} --park"
    assert said == (f"leave that out to go on with it; or park it, then {again}{park} (a stop would end its programs)")
    home.must(*park.replace("NAME", f"{branch}-parked").split()[1:])
    more = ["--tier", "respawn"] if tier == "respawn" else []
    home.must("shell", branch, "-d", *options, *more)
    if options[0] == "--shell":
        assert home.must("run", "-b", branch, "--", "true").code == 0
    else:
        assert inside(home, branch, SEEN) == "kept\n1\n"


def test_another_origin_for_a_branch_that_exists_is_no_reason_to_stop_it(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-parked", "-b", branch)
    for state in ("live", "stopped"):
        refused = home.cli("shell", branch, "-d", "--from", f"{branch}-parked")
        way = f"waypoint restore {branch}-parked -b {branch}"
        assert (refused.code, steps(refused.stderr)) == (
            4,
            f"choose another name, or bring it back on this branch: {way}",
        )
        home.must(*way.split()[1:])
        assert inside(home, branch, SEEN) == "kept\n1\n"
        if state == "live":
            home.must("stop", branch)


@pytest.mark.parametrize(
    ("tier", "back"),
    [("live", "all its programs, as they were"), ("respawn", "its programs, started again"), ("files", "its files")],
)
def test_what_comes_back_of_a_branch_without_a_session_is_said(home: Home, branch: str, tier: str, back: str) -> None:
    home.must("checkpoint", f"{branch}-parked", "-b", branch, "--park", "--tier", tier)
    refused = home.cli("exec", "-b", branch, "--", "true")
    assert steps(refused.stderr) == f"go on with {back}: waypoint shell {branch}"
    home.must("shell", branch, "-d")
    assert inside(home, branch, SEEN).splitlines()[1] == ("0" if tier == "files" else "1")


@pytest.mark.requires("userns")
def test_advice_has_all_that_was_typed(home: Home) -> None:
    with session(home, "root", "--cwd", "/", "--allow", "userns") as branch:
        home.must("checkpoint", f"{branch}-cp", "-b", branch)
        inside(home, branch, f"{NESTED}; exec 9</dev/tty")
        for tier in ("files", "respawn"):
            refused = home.cli("restore", f"{branch}-cp", "--tier", tier)
            way = f"waypoint restore {branch}-cp -b {branch} --tier {tier} --lose-processes"
            assert (refused.code, steps(refused.stderr).endswith(f": {way}")) == (5, True), refused.stderr
        taken = home.cli("checkpoint", f"{branch}-cp", "-b", branch, "-m", "a note", "--tier", "files", "--park")
        _, way = steps(taken.stderr).split(": ")
        assert way == f"waypoint checkpoint --force {branch}-cp -b {branch} -m 'a note' --tier files --park"
        refused = home.cli("checkpoint", f"{branch}-p", "-b", branch, "-m", "a note", "--park")
        way = steps(refused.stderr).rpartition(": ")[2]
        assert way == f"waypoint checkpoint {branch}-p -b {branch} -m 'a note' --park --lose-processes"
        home.must(*shlex.split(way)[1:])
        assert home.must("show", f"{branch}-p", "--json").json()["message"] == "a note"
        home.must("rm", f"{branch}-p", f"{branch}-cp")
