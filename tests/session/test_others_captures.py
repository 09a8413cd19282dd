"""What users are told of captures and operations that are root's, where each takes back only what is its own."""

import re
from collections.abc import Iterator

import pytest

from tests.acceptance.people import Person
from tests.homes import Home, open_home
from tests.session.let_in import refused, stop, succeeds

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout")]

OF_ROOTS_CAPTURE = {
    "fork": ("fork", "{}", "new"),
    "restore beside": ("restore", "{}", "--new", "new"),
    "restore over": ("restore", "{}", "-b", "own"),
    "shell from": ("shell", "new", "-d", "--from", "{}"),
}
TO_ROOTS_BRANCH = {
    "fork": ("fork", "{}", "new"),
    "restore beside": ("restore", "{}", "--new", "new"),
    "restore files": ("restore", "{}", "-b", "own", "--only", "files"),
    "shell from": ("shell", "new", "-d", "--from", "{}"),
    "delete": ("branch", "delete", "{}"),
    "checkpoint": ("checkpoint", "new", "-b", "{}"),
}


@pytest.fixture(scope="module")
def shared(person: Person) -> Iterator[Home]:
    """`own` is a session of the person's, `roots-cp` a checkpoint of root's."""
    with open_home("captures") as home:
        home.must("setup", "--user", person.name)
        home.must("shell", "roots", "-d", "--user", "root")
        home.must("checkpoint", "roots-cp", "-b", "roots")
        succeeds(person.can(home, "shell", "own", "-d"))
        yield home


@pytest.mark.parametrize("door", OF_ROOTS_CAPTURE)
@pytest.mark.parametrize("kind", ["checkpoint", "capture"])
def test_a_capture_of_roots_is_called_so_by_its_name_and_by_its_id(
    shared: Home, person: Person, kind: str, door: str
) -> None:
    name = "roots-cp" if kind == "checkpoint" else shared.must("show", "roots-cp", "--json").json()["capture"]
    done = person.can(shared, *(word.format(name) for word in OF_ROOTS_CAPTURE[door]))
    refused(done, f"{kind} {name}: it is root's, and you are {person.name}")


@pytest.mark.parametrize("door", TO_ROOTS_BRANCH)
def test_of_a_branch_of_roots_is_said_whose_it_is_before_what_could_be_done(
    shared: Home, person: Person, door: str
) -> None:
    """Also of one on which nothing was captured yet, and which is live."""
    shared.must("shell", "bare", "-d", "--user", "root")
    done = person.can(shared, *(word.format("bare") for word in TO_ROOTS_BRANCH[door]))
    refused(done, f"it is root's, and you are {person.name}")
    assert "use what is yours, or another name; or have root do it\n" in done.stderr


def test_a_users_undo_takes_back_nothing_that_root_did_on_the_branch(shared: Home, person: Person) -> None:
    succeeds(person.can(shared, "shell", "both", "-d"))
    succeeds(person.can(shared, "checkpoint", "both-users", "-b", "both"))
    shared.must("checkpoint", "both-roots", "-b", "both")
    assert f"it was done by {person.name}, 2" in succeeds(person.can(shared, "undo", "-b", "both"))
    names = {name for one in shared.must("log", "--all", "--json").json() for name in one["names"]}
    assert names & {"both-users", "both-roots"} == {"both-roots"}
    shared.must("restore", "both-roots")
    assert "it was done by root, 2" in shared.must("undo", "-b", "both").stdout
    said = person.can(shared, "undo", "-b", "both").stderr
    log = shared.must("op", "log", "--json").json()
    moved = next(one["number"] for one in log if one["verb"] == "checkpoint" and "both-roots" in one["moves"])
    assert f"both has been moved since, last by operation {moved} (checkpoint), which was done by root" in said
    stop(shared, "both")
    shared.must("rm", "both-roots")


def test_when_the_start_was_taken_back_the_refusal_names_the_undo(shared: Home, person: Person) -> None:
    succeeds(person.can(shared, "shell", "begun", "-d"))
    succeeds(person.can(shared, "undo", "-b", "begun"))
    done = person.can(shared, "undo", "-b", "begun")
    assert done.returncode == 4
    assert re.search(r"the last undo, \d+, took back operation \d+ \(start\)\n", done.stderr)
    way = re.search(r"to have that again: waypoint (undo \d+)\n", done.stderr)
    assert way
    succeeds(person.can(shared, *way[1].split()))
    stop(shared, "begun")
