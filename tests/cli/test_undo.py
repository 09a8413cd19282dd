"""`waypoint undo` without a number: the choice of the operation, and the warnings."""

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Spawn
from tests.homes import Home
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]


@pytest.fixture
def neighbour(home: Home, branch: str) -> Iterator[str]:
    """The branch of a second live session."""
    name = f"{branch}-n"
    home.must("shell", name, "-d")
    yield name
    home.cli("stop", name, "--discard")


@contextlib.contextmanager
def logged_in(home: Home, *args: str) -> Iterator[None]:
    """Run `waypoint ARGS` as the same user in another login session, which ends at the end of the block."""
    script = '"$@" >/dev/null && echo done && read -r line'
    with subprocess.Popen(
        ["/bin/bash", "-c", script, "-", *home.argv(*args)],
        env=home.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as login:
        assert login.stdout is not None
        assert login.stdout.readline() == b"done\n"
        yield
        login.communicate(b"\n", timeout=DEADLINE_S)


def last(home: Home) -> Any:
    return home.must("op", "log", "-n", "1", "--json").json()[0]


def names(home: Home) -> set[str]:
    return {name for capture in home.must("log", "--all", "--json").json() for name in capture["names"]}


@pytest.mark.parametrize("way", ["option", "variable", "inside"])
def test_undo_with_a_branch_never_reverses_an_operation_of_another_branch(
    home: Home, branch: str, neighbour: str, way: str
) -> None:
    mine, theirs = f"{branch}-mine", f"{branch}-theirs"
    if way == "inside":
        home.must("exec", "-b", branch, "--", f"waypoint checkpoint {mine}")
    else:
        home.must("checkpoint", mine, "-b", branch)
    home.must("checkpoint", theirs, "-b", neighbour)
    args, env = ([], {"WAYPOINT_BRANCH": branch}) if way == "variable" else (["-b", branch], {})
    assert home.must("undo", *args, env=env).stdout.startswith("undo of operation ")
    assert {mine, theirs} & names(home) == {theirs}


def test_operations_requested_from_a_branch_belong_to_the_branch(home: Home, branch: str, neighbour: str) -> None:
    home.must("checkpoint", f"{branch}-c", "-b", branch)
    home.must("fork", f"{branch}-c", f"{branch}-f", env={"WAYPOINT_BRANCH": branch})
    home.must("checkpoint", f"{neighbour}-c", "-b", neighbour)
    home.must("undo", "-b", branch)
    assert f"{branch}-f" not in {one["name"] for one in home.must("branch", "--json").json()}
    assert {f"{branch}-c", f"{neighbour}-c"} <= names(home)


def test_undo_without_a_branch_reverses_the_last_operation_of_the_callers_login(
    home: Home, branch: str, neighbour: str
) -> None:
    mine, theirs = f"{branch}-mine", f"{branch}-theirs"
    home.must("checkpoint", mine, "-b", branch)
    home.must("exec", "-b", neighbour, "--", f"waypoint checkpoint {theirs}-1")
    home.must("checkpoint", f"{theirs}-2", env={"WAYPOINT_BRANCH": neighbour})
    with logged_in(home, "checkpoint", f"{theirs}-3", "-b", neighbour):
        home.must("undo")
        assert {name for name in names(home) if name.startswith(f"{branch}-")} == {
            neighbour,
            *(f"{theirs}-{number}" for number in (1, 2, 3)),
        }
    home.must("undo")  # the other login has ended, so its operation counts as the caller's
    assert f"{theirs}-3" not in names(home)


def test_operations_from_the_session_on_main_belong_to_the_caller(home: Home, branch: str) -> None:
    home.must("shell", "main", "-d")
    home.must("exec", "--", "mine=before")
    home.must("exec", "--", "waypoint checkpoint on-main")
    home.must("exec", "--", "mine=after")
    home.cli("exec", "--", "waypoint restore on-main")
    assert home.must("exec", "--", "echo $mine").stdout == "before\n"
    home.must("checkpoint", "theirs", env={"WAYPOINT_BRANCH": branch})
    home.must("undo")
    assert home.must("exec", "--", "echo $mine").stdout == "after\n"
    assert "theirs" in names(home)
    home.must("stop", "--discard")


def test_undo_without_an_operation_left_advises_to_choose_a_number(home: Home, branch: str) -> None:
    found = last(home)  # the operation that started the session
    refused = home.cli("undo", "-b", "nothing-here")
    assert (refused.code, refused.stdout) == (4, "")
    assert "of branch nothing-here: no operation is left" in refused.stderr
    assert "waypoint op log, then waypoint undo N" in refused.stderr
    home.must("op", "log")
    assert home.must("undo", str(found["number"])).stdout.startswith(f"undo of operation {found['number']} (start)")


@pytest.mark.parametrize("within", [False, True], ids=["outside", "inside"])
def test_an_undo_that_ends_a_session_prints_how_to_reverse_it(home: Home, branch: str, *, within: bool) -> None:
    ended = f"{branch}-f" if within else branch
    if within:
        home.must("exec", "-b", branch, "--", f"waypoint fork {branch} {ended}")
    home.must("exec", "-b", ended, "--", "here=1")
    home.must("checkpoint", f"{ended}-c", "-b", ended)
    home.must("undo", "-b", ended)
    if within:
        said = home.must("exec", "-b", branch, "--", "waypoint undo").stdout
    else:
        said = home.must("undo", "-b", branch).stderr
    assert ended not in {one["branch"] for one in home.must("ps", "--json").json()}
    number = last(home)["number"]
    assert said.endswith(f"to reverse this undo: waypoint {'' if within else f'--home {home.path} '}undo {number}\n")
    home.must("undo", str(number))
    assert home.must("exec", "-b", ended, "--", "echo $here").stdout == "1\n"
    home.cli("stop", ended, "--discard")


def test_a_number_cannot_be_combined_with_a_branch(home: Home) -> None:
    assert home.cli("undo", "1", "-b", "main").code == 2


def test_undo_warns_if_it_cannot_restore_the_processes(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "mine=42")
    home.must("stop", "--files", branch)
    kept = home.must("show", branch, "--json").json()["capture"][:12]
    told = home.must("undo", "-b", branch)
    expected = f"will be lost: {branch}: its processes (capture {kept} has only files)\n"
    assert told.stderr == expected
    assert home.must("exec", "-b", branch, "--", "echo -$mine").stdout == "-42\n"


@pytest.mark.requires("criu")
def test_undo_of_a_start_keeps_the_session_with_its_processes(home: Home, branch: str) -> None:
    home.must("fork", branch, f"{branch}-f")
    home.must("exec", "-b", f"{branch}-f", "--", "kept=yes")
    undone = home.must("undo", "--json")
    assert undone.stderr == ""
    ended = home.must("op", "log", "-n", "1", "--json").json()[0]["moves"][f"{branch}-f"]
    assert home.must("show", ended[0], "--json").json()["tier"] == "live"


def test_undo_prints_no_warning_if_it_restores_everything(home: Home, branch: str) -> None:
    home.must("stop", branch, "--checkpoint", f"{branch}-c")
    assert home.must("undo", "-b", branch).stderr == ""


@pytest.mark.requires("strace")
def test_undo_of_several_forks_ends_none_if_the_processes_of_one_cannot_be_kept(home: Home, branch: str) -> None:
    forks = [f"{branch}-f{number}" for number in (1, 2, 3)]
    home.must("fork", branch, *forks)
    number = home.must("op", "log", "-n", "1", "--json").json()[0]["number"]
    for fork in forks:
        home.must("exec", "-b", fork, "--", f"kept={fork}")
    home.must("exec", "-b", forks[1], "--", "strace -o /dev/null sleep 1000 & until pgrep -x sleep; do :; done")
    refused = home.cli("undo", str(number))
    assert refused.code == 5
    for fork in forks:
        assert home.must("exec", "-b", fork, "--", "echo $kept").stdout == f"{fork}\n"
    step = refused.stderr.rpartition("without the processes: waypoint ")[2].split()
    home.must(*step)
    assert {one["branch"] for one in home.must("ps", "--json").json()} & set(forks) == set()


def test_undo_of_a_start_tells_attached_clients_where_the_files_are_kept(home: Home, on_terminal: Spawn) -> None:
    terminal = on_terminal("shell", "t-unstarted")
    terminal.expect(rb"[#$] ")
    terminal.send(b"echo kept >/srv/unstarted; echo do''ne\r")
    terminal.expect(b"done")
    home.must("undo", "-b", "t-unstarted")
    terminal.expect(rb"t-unstarted was stopped or killed; kept as .*; to continue: waypoint ([^\]]*)\]")
    words = terminal.match[1].decode().replace("NEW", "t-again").split()
    home.must(*words, "-d")
    assert home.must("exec", "-b", "t-again", "--", "cat /srv/unstarted").stdout == "kept\n"
    home.must("undo", str(last(home)["number"] - 1))  # starts the session again on its branch
    home.must("stop", "t-unstarted", "t-again", "--discard")
