"""The state of a session's shell is kept even when its processes are not: after a stop, a kill, a fork of files."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.seat import Seat
from tests.acceptance.sessions import inside, session
from tests.homes import Home
from tests.waiting import wait_until

pytestmark = [pytest.mark.privileged]

STATE = r"""mkdir -p '/tmp/a b'; cd '/tmp/a b'; x=$'one\n$(touch ran)'; export y=$'\xff\xfe'; typeset -i n=5
typeset -r fixed=1; typeset -A map; map[k]='v w'; list=(1 '2 3'); f() { echo f-$1; }; alias hey='echo hey'
umask 027; ulimit -Sn 100
trap 'echo caught' USR1; set -u; set -- one $'two\n'; pushd / >/dev/null; (exit 7)"""
SHOW = r"""printf '<%s>' $? "$PWD" "$x" "$y" $n $fixed "${map[k]}" "${list[@]}" "$(alias hey)"
printf '<%s>' "$(umask)" "$(ulimit -Sn)" "$@"; f 1; dirs; trap | grep USR1; (cd -; pwd)
case $- in *u*) echo nounset;; esac"""


@pytest.fixture(params=["person", pytest.param("zsh_person", marks=pytest.mark.soak(part="matrix"))])
def branch(home: Home, request: pytest.FixtureRequest) -> Iterator[str]:
    with session(home, request.getfixturevalue(request.param).name) as name:
        yield name


def make(home: Home, branch: str) -> str:
    """Give the shell on `branch` a state; return the output of SHOW."""
    home.cli("exec", "-b", branch, "--", STATE)
    return inside(home, branch, SHOW)


def make_with_status_7(home: Home, branch: str) -> None:
    """Give the shell a state whose last exit status is 7; SHOW is not run, as it would change that status."""
    assert home.cli("exec", "-b", branch, "--", "cd /; " + STATE.partition("typeset -r")[0] + "(exit 7)").code == 7


def test_a_stopped_session_starts_with_its_shell_state(home: Home, branch: str) -> None:
    make(home, branch)
    make_with_status_7(home, branch)
    home.must("stop", "--files", branch)
    assert home.must("show", branch, "--json").json()["layers"]["shell"]["moment"] == "prompt"
    begun = home.must("shell", branch, "-d", cwd=Path("/usr"))
    assert begun.stderr == ""
    assert inside(home, branch, SHOW).startswith("<7></tmp/a b><one\n$(touch ran)>")
    assert inside(home, branch, "ls -A") == ""


def test_a_fork_of_files_has_the_shell_state(home: Home, branch: str) -> None:
    before = make(home, branch)
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "files")
    inside(home, branch, "cd /; x=; set --; trap - USR1; unalias hey; umask 0")
    home.must("fork", f"{branch}-cp", f"{branch}-fork")
    try:
        assert inside(home, f"{branch}-fork", SHOW) == before.replace("<7>", "<0>")
    finally:
        home.must("stop", f"{branch}-fork", "--discard")


def test_a_restore_of_files_has_the_shell_state_and_can_be_undone(home: Home, branch: str) -> None:
    make(home, branch)
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "files")
    before = inside(home, branch, SHOW)
    inside(home, branch, "cd /; x=; set --; trap - USR1; unalias hey; umask 0")
    done = home.must("restore", f"{branch}-cp", "-b", branch, "--lose-processes")
    assert inside(home, branch, SHOW) == before
    assert "shell" not in done.stderr
    home.must("undo")
    assert inside(home, branch, 'echo "$PWD<$x>$#"') == "/<>0\n"


def test_a_killed_session_starts_with_its_shell_state(home: Home, branch: str) -> None:
    make_with_status_7(home, branch)
    inside(home, branch, "map=1; true")
    os.kill(next(one["pid"] for one in home.must("ps", "--json").json() if one["branch"] == branch), signal.SIGKILL)
    wait_until(
        lambda: branch not in [one["branch"] for one in home.must("ps", "--json").json()], "the session has ended"
    )
    home.must("shell", branch, "-d")
    assert inside(home, branch, 'echo "$PWD $map"') == "/tmp/a b 1\n"


def test_a_busy_shell_is_captured_with_the_state_of_its_last_prompt(
    home: Home, person: Person, seat: Callable[..., Seat]
) -> None:
    with session(home, person.name) as branch:
        inside(home, branch, "cd /usr; x=old")
        taken = seat()
        taken.type(f"waypoint attach {branch}\r".encode()).prompt()
        taken.type(b"x=new\r").prompt()
        taken.type(b"x=later; sleep 1000\r").see(b"sleep 1000\r\n")
        done = home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "files")
        assert "degraded" not in done.stderr
        assert home.must("show", f"{branch}-cp", "--json").json()["layers"]["shell"]["moment"] == "prompt"
        taken.type(b"\x03").prompt()
        home.must("restore", f"{branch}-cp", "-b", branch, "--only", "shell")
        assert inside(home, branch, 'echo "$PWD $x"; fc -ln -1') == "/usr new\n\t x=new\n"


def test_a_given_folder_or_a_new_shell_replaces_the_state(home: Home, branch: str) -> None:
    inside(home, branch, "cd /tmp; x=1")
    home.must("stop", "--files", branch)
    home.must("shell", branch, "-d", "--cwd", "/usr")
    assert inside(home, branch, "echo $PWD $x") == "/usr 1\n"
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--tier", "files")
    home.must("stop", "--files", branch)
    home.must("restore", f"{branch}-cp", "-b", branch, "--only", "files")
    assert inside(home, branch, "echo <${x-}>".replace("<", "'<'").replace(">", "'>'")) == "<>\n"
