"""A live branch that is restored on another one stands for what it is now: nothing of its session is lost."""

from collections.abc import Iterator

import pytest

from tests.acceptance.sessions import branch_of, inside, session
from tests.homes import Home
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


branch = pytest.fixture(params=["root", "person"])(branch_of)


@pytest.fixture
def worker(home: Home, branch: str) -> Iterator[str]:
    """A fork of `branch` that has done something since: a file, a variable, a program."""
    name = f"{branch}-w"
    inside(home, branch, "mkdir -p /tmp/app; n=before")
    home.must("fork", branch, name)
    inside(home, name, "n=fixed; echo fixed >/tmp/app/fix; sleep 5321 & true")
    yield name
    home.cli("stop", name, "--discard")


def tip(home: Home, branch: str) -> str:
    return str(home.must("log", branch, "-n", "1", "--json").json()[0]["capture"])


SEEN = "echo $n; cat /tmp/app/fix; pgrep -c -f '[s]leep 5321'"


def test_all_of_it_is_brought_back_as_it_is_now(home: Home, branch: str, worker: str) -> None:
    done = home.must("restore", worker, "-b", branch)
    assert done.stdout == f"{branch}\n"
    assert f"brought back: {worker} as it is now, captured as {tip(home, worker)[:12]}\n" in done.stderr
    assert inside(home, worker, "echo $n") == "fixed\n"  # it goes on
    home.must("stop", worker, "--discard")
    assert inside(home, branch, SEEN) == "fixed\nfixed\n1\n"


def test_on_a_branch_that_is_not_live_too(home: Home, branch: str, worker: str) -> None:
    home.must("stop", branch)
    home.must("restore", worker, "-b", branch)
    assert inside(home, branch, SEEN) == "fixed\nfixed\n1\n"


@pytest.mark.parametrize(("only", "seen"), [("files", "before\nfixed\n"), ("shell", "fixed\nnone\n")])
def test_one_aspect_of_it_is_too(home: Home, branch: str, worker: str, only: str, seen: str) -> None:
    done = home.must("restore", worker, "-b", branch, "--only", only)
    assert f"brought back: {worker} as it is now, captured as " in done.stderr
    assert inside(home, branch, "echo $n; cat /tmp/app/fix 2>/dev/null || echo none") == seen


def test_by_the_sdk_a_branch_that_was_never_captured_is_too(home: Home, branch: str) -> None:
    with session(home, "root", "--cwd", "/") as other:
        inside(home, other, "n=fixed")
        client = Client(home.path)
        facts = client.session(branch).restore(other)
        assert facts.restored == {"capture": tip(home, other), "name": other, "moment": "now"}
        assert inside(home, branch, "echo $n") == "fixed\n"


def test_a_branch_on_itself_goes_back_to_its_last_capture(home: Home, branch: str) -> None:
    inside(home, branch, "n=first")
    kept = home.must("checkpoint", f"{branch}-cp", "-b", branch, "--json").json()["capture"]
    inside(home, branch, "n=second")
    for options in ((), ("-b", branch)):
        done = home.must("restore", branch, *options)
        assert f"brought back: {branch} as it was captured last, {kept[:12]}\n" in done.stderr
        assert inside(home, branch, "echo $n") == "first\n"
        home.must("undo", "-b", branch)
    done = home.must("restore", f"{branch}-cp")
    assert f"brought back: {branch}-cp, {kept[:12]}\n" in done.stderr
    done = home.must("restore", kept[:8])
    assert f"brought back: {kept[:12]}\n" in done.stderr


def test_from_inside_there_are_no_other_branches(home: Home, branch: str) -> None:
    """Also none whose last capture the own branch had: it would come back as it was then."""
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    home.must("restore", f"{branch}-cp", "--new", f"{branch}-n")
    inside(home, f"{branch}-n", "echo fixed >/tmp/fix")
    for words in (f"restore {branch}-n --only files", f"fork {branch}-n {branch}-x"):
        done = home.cli("exec", "-b", branch, "--", f"waypoint {words}")
        assert (done.code, f"it is not in the history of {branch}" in done.stdout) == (2, True)
    said = inside(home, branch, f"waypoint restore {branch}-cp --only files")
    assert f"brought back: {branch}-cp, " in said
    home.must("stop", f"{branch}-n", "--discard")
