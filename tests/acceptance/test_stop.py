"""`stop` first hangs up the shell (SIGHUP), as a closed terminal does, then kills all other processes."""

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import wait_until

pytestmark = pytest.mark.privileged


def test_the_shell_keeps_its_history_and_runs_its_exit_trap(home: Home, person: Person) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, "HISTFILE=~/kept; history -s typed before; trap 'echo said >~/trap' EXIT; sleep 1000 &")
        (stopped,) = home.must("stop", branch, "--json").json()
        assert stopped["exit"] is None  # the session did not end by itself
        home.must("shell", branch, "-d")
        assert "typed before\n" in inside(home, branch, "cat ~/kept")
        assert inside(home, branch, "cat ~/trap") == "said\n"


@pytest.mark.requires("zsh")
def test_zsh_saves_its_history(home: Home, zsh_person: Person) -> None:
    with session(home, zsh_person.name) as branch:
        inside(home, branch, "HISTFILE=~/kept SAVEHIST=100; print -s typed before")
        home.must("stop", branch)
        home.must("shell", branch, "-d")
        assert "typed before\n" in inside(home, branch, "cat ~/kept")


def test_a_shell_that_ignores_the_hangup_is_killed(home: Home, person: Person) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, "trap '' HUP; trap 'echo said >~/trap' EXIT; echo work >~/work")
        home.must("stop", branch)
        home.must("shell", branch, "-d")
        assert inside(home, branch, "cat ~/work; ls ~/trap 2>/dev/null || echo none") == "work\nnone\n"


@pytest.mark.parametrize("way", ["exec", "run"])
def test_a_stop_from_inside_reports_only_the_end_of_the_session(home: Home, person: Person, way: str) -> None:
    with session(home, person.name) as branch:
        done = home.cli(way, "-b", branch, "--", "waypoint", "stop")
        assert done.stdout == ""
        if way == "exec":
            assert done.code == 125
            said = "the session ended, and its exit status is not known"
            assert f"waypoint: cannot follow the command on branch {branch}: {said}\n" in done.stderr
        else:
            assert (done.code, done.stderr) == (137, "")
        # The process of `run` ends before the session does, so wait for the end of the session.
        wait_until(
            lambda: "it has no running session" in home.cli("exec", "-b", branch, "--", "true").stderr,
            "the session has ended",
        )
