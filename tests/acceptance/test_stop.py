"""`stop` keeps the programs. `stop --files` hangs up the shell (SIGHUP), as a closed terminal does, then kills all."""

import re

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import wait_until

pytestmark = pytest.mark.privileged

TRACED = """
mkfifo /tmp/is-traced
python3 -c '
import ctypes, signal
ctypes.CDLL(None).ptrace(0, 0, 0, 0)
open("/tmp/is-traced", "w").write("yes")
signal.pause()
' &
cat /tmp/is-traced
"""


def test_the_shell_keeps_its_history_and_runs_its_exit_trap(home: Home, person: Person) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, "HISTFILE=~/kept; history -s typed before; trap 'echo said >~/trap' EXIT; sleep 1000 &")
        (stopped,) = home.must("stop", "--files", branch, "--json").json()
        assert stopped["exit"] is None  # the session did not end by itself
        home.must("shell", branch, "-d")
        assert "typed before\n" in inside(home, branch, "cat ~/kept")
        assert inside(home, branch, "cat ~/trap") == "said\n"


@pytest.mark.requires("zsh")
def test_zsh_saves_its_history(home: Home, zsh_person: Person) -> None:
    with session(home, zsh_person.name) as branch:
        inside(home, branch, "HISTFILE=~/kept SAVEHIST=100; print -s typed before")
        home.must("stop", "--files", branch)
        home.must("shell", branch, "-d")
        assert "typed before\n" in inside(home, branch, "cat ~/kept")


def test_a_shell_that_ignores_the_hangup_is_killed(home: Home, person: Person) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, "trap '' HUP; trap 'echo said >~/trap' EXIT; echo work >~/work")
        home.must("stop", "--files", branch)
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


@pytest.mark.requires("criu")
def test_a_stop_keeps_the_programs_and_says_how(home: Home, person: Person) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, "mine=42; (sleep 1000; echo)& echo $! >~/pid")
        done = home.must("stop", branch)
        assert re.fullmatch(rf"{branch}  kept as [0-9a-f]{{12}}  live\n", done.stdout)
        assert [one["state"] for one in home.must("ps", "--all", "--json").json() if one["branch"] == branch] == [
            "parked"
        ]
        assert home.cli("exec", "-b", branch, "--", "true").code == 125  # only `shell` brings it back
        home.must("shell", branch, "-d")
        assert inside(home, branch, "kill -0 $(cat ~/pid) && echo $mine") == "42\n"
        home.must("stop", branch)
        home.must("undo", "-b", branch)
        assert inside(home, branch, "kill -0 $(cat ~/pid) && echo $mine") == "42\n"
        inside(home, branch, "exec 9<>/dev/tcp/127.0.0.1/1 2>/dev/null; mine=43")
        assert home.must("stop", branch, "--files").stdout.endswith("  files\n")
        home.must("shell", branch, "-d")
        assert inside(home, branch, "kill -0 $(cat ~/pid) 2>/dev/null || echo $mine") == "43\n"


def test_a_stop_of_what_criu_refuses_keeps_the_command_lines(home: Home, person: Person) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, TRACED)
        (stopped,) = home.must("stop", branch, "--json").json()
        assert stopped["tier"] == "respawn"
        assert [(one["code"], one["subject"]) for one in stopped["degraded"]] == [("no-processes", "criu-traced")]


def test_a_discard_does_not_stand_in_the_way_of_an_undo(home: Home, person: Person) -> None:
    with session(home, person.name) as kept, session(home, person.name) as gone:
        home.must("checkpoint", f"{kept}-c", "-b", kept)
        home.must("stop", gone, "--discard")
        home.must("undo")  # not of the discard, which nothing undoes
        assert home.cli("show", f"{kept}-c").code == 2
