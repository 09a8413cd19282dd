"""Captures and operations of root are refused to other users; each user undoes only their own operations."""

import re

import pytest

from tests.acceptance.people import Person
from tests.collecting import collecting
from tests.homes import Home
from tests.session.let_in import refused, stop, succeeds

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "public-checkout")]

OF_ROOTS_CAPTURE = {
    "diff": ("diff", "{}"),
    "diff from own": ("diff", "own", "{}"),
    "fork": ("fork", "{}", "new"),
    "restore beside": ("restore", "{}", "--new", "new"),
    "restore over": ("restore", "{}", "-b", "own"),
    "shell from": ("shell", "new", "-d", "--from", "{}"),
}
TO_ROOTS_BRANCH = {
    "diff": ("diff", "{}"),
    "fork": ("fork", "{}", "new"),
    "restore beside": ("restore", "{}", "--new", "new"),
    "restore files": ("restore", "{}", "-b", "own", "--only", "files"),
    "shell from": ("shell", "new", "-d", "--from", "{}"),
    "delete": ("branch", "delete", "{}"),
    "checkpoint": ("checkpoint", "new", "-b", "{}"),
}


@pytest.fixture(scope="module")
def shared(let_in: Home, person: Person) -> Home:
    """A home with `own`, a session of the person, and `roots-cp`, a checkpoint of root."""
    let_in.must("shell", "roots", "-d", "--user", "root")
    let_in.must("checkpoint", "roots-cp", "-b", "roots")
    succeeds(person.can(let_in, "shell", "own", "-d"))
    return let_in


def test_captures_and_branches_of_root_are_refused_with_their_owner(shared: Home, person: Person) -> None:
    """The branch `bare` has a live session and no capture yet."""
    shared.must("shell", "bare", "-d", "--user", "root")
    capture = shared.must("show", "roots-cp", "--json").json()["capture"]
    with collecting() as row:
        for verb, words in OF_ROOTS_CAPTURE.items():
            with row(f"{verb} capture"):
                done = person.can(shared, *(word.format(capture) for word in words))
                refused(done, f"capture {capture}: it belongs to root, and you are {person.name}")
        for verb, words in TO_ROOTS_BRANCH.items():
            with row(f"{verb} branch"):
                done = person.can(shared, *(word.format("bare") for word in words))
                refused(done, f"it belongs to root, and you are {person.name}")
                assert (
                    "use a branch or checkpoint of your own, or another name; or let root run the command\n"
                    in done.stderr
                )


def test_a_user_attaches_and_gets_only_what_they_may_read(shared: Home, person: Person) -> None:
    out = person.home
    (out / "own").write_text("own")
    done = person.can(shared, "checkpoint", "of-shadow", "-b", "own", "--attach", "x=/etc/shadow")
    refused(done, f"cannot attach x=/etc/shadow: {person.name} may not read /etc/shadow")
    succeeds(person.can(shared, "checkpoint", "with-own", "-b", "own", "--attach", f"x={out}/own"))
    succeeds(person.can(shared, "layer", "get", "with-own", "x", f"{out}/back"))
    assert ((out / "back").stat().st_uid, (out / "back").read_text()) == (person.uid, "own")
    refused(person.can(shared, "layer", "get", "with-own", "x", "/etc/new"), f"{person.name} may not write /etc")
    shared.must("checkpoint", "roots-x", "-b", "roots", "--attach", "x=/etc/hostname")
    refused(person.can(shared, "layer", "get", "roots-x", "x", f"{out}/of-root"), "it belongs to root")


def test_undo_of_a_user_takes_back_no_operation_of_root(shared: Home, person: Person) -> None:
    succeeds(person.can(shared, "shell", "both", "-d"))
    succeeds(person.can(shared, "checkpoint", "both-users", "-b", "both"))
    shared.must("checkpoint", "both-roots", "-b", "both", "--anew")
    assert f"the operation was requested by {person.name}, 2" in succeeds(person.can(shared, "undo", "-b", "both"))
    names = {name for one in shared.must("log", "--all", "--json").json() for name in one["names"]}
    assert names & {"both-users", "both-roots"} == {"both-roots"}
    shared.must("restore", "both-roots")
    assert "the operation was requested by root, 2" in shared.must("undo", "-b", "both").stdout
    said = person.can(shared, "undo", "-b", "both").stderr
    log = shared.must("op", "log", "--json").json()
    moved = next(one["number"] for one in log if one["verb"] == "checkpoint" and "both-roots" in one["moves"])
    assert f"both has been changed since, last by operation {moved} (checkpoint), which was requested by root" in said
    stop(shared, "both")
    shared.must("rm", "both-roots")


def test_a_second_undo_of_a_start_is_refused_and_names_the_first(shared: Home, person: Person) -> None:
    succeeds(person.can(shared, "shell", "begun", "-d"))
    succeeds(person.can(shared, "undo", "-b", "begun"))
    done = person.can(shared, "undo", "-b", "begun")
    assert done.returncode == 4
    assert re.search(r"the last undo, \d+, reversed operation \d+ \(start\)\n", done.stderr)
    way = re.search(r"to do this operation again: waypoint (undo \d+)\n", done.stderr)
    assert way
    succeeds(person.can(shared, *way[1].split()))
    stop(shared, "begun")
