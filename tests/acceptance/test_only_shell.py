"""`restore NAME --only shell`: the shell's state is restored, files and processes stay."""

from collections.abc import Iterator

import pytest

from tests.acceptance.people import Person
from tests.acceptance.sessions import inside, session
from tests.homes import Completed, Home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu")]

SHOW = r"""printf "%s|" "$PWD" "$x" "${new-none}" "$(alias hey 2>/dev/null)" "$(umask)" "$(ulimit -Sn)"
say; trap | grep USR1 ||:"""


@pytest.fixture(params=["person", pytest.param("zsh_person", marks=pytest.mark.soak(part="matrix"))])
def branch(home: Home, request: pytest.FixtureRequest) -> Iterator[str]:
    with session(home, request.getfixturevalue(request.param).name) as name:
        yield name


def make(home: Home, branch: str) -> str:
    """Give the shell a state and checkpoint it; return the output of SHOW."""
    inside(home, branch, "mkdir -p /tmp/d; cd /tmp/d; x=$'one\\n'; say() { echo said; }; alias hey='echo hey'")
    inside(home, branch, "umask 027; ulimit -Sn 100; trap 'echo caught' USR1; set -u; echo one >file; sleep 1000 &")
    shown = inside(home, branch, SHOW)
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    return shown


def spoil(home: Home, branch: str) -> str:
    """Change the state of the shell; return the output of SHOW."""
    inside(home, branch, "x=two; new=1; say() { echo other; }; unalias hey; umask 0; trap - USR1; echo two >file")
    inside(home, branch, "cd /usr; set +u; ulimit -Sn 90")
    return inside(home, branch, SHOW)


def degraded(done: Completed) -> list[str]:
    words = "degraded: "
    return [line.removeprefix(words) for line in done.stderr.splitlines() if line.startswith(words)]


def test_the_shell_is_restored_and_files_and_processes_continue(home: Home, branch: str) -> None:
    before = make(home, branch)
    other = spoil(home, branch)
    assert before != other
    pid = inside(home, branch, "echo $$ $!; kill -0 $! && jobs | wc -l")
    done = home.must("restore", f"{branch}-cp", "-b", branch, "--only", "shell")
    assert (done.stdout, degraded(done)) == (f"{branch}\n", [])
    assert inside(home, branch, SHOW) == before
    assert inside(home, branch, "echo $$ $!; kill -0 $! && jobs | wc -l") == pid
    assert inside(home, branch, "cat file; echo $-").startswith("two\n")
    assert "u" in inside(home, branch, "echo $-")


def test_a_restore_of_the_shell_can_be_undone(home: Home, branch: str) -> None:
    before = make(home, branch)
    other = spoil(home, branch)
    home.must("restore", f"{branch}-cp", "-b", branch, "--only", "shell")
    inside(home, branch, "echo three >/tmp/d/file")
    last = home.must("op", "log", "-n", "1", "--json").json()[0]
    assert last["verb"] == "restore"
    assert last["undo"].startswith(f"restore the session that was on {branch}, its shell only")
    home.must("undo")
    assert inside(home, branch, SHOW) == other
    assert inside(home, branch, "cat /tmp/d/file") == "three\n"
    assert [one["reason"] for one in home.must("log", branch, "--json").json()] == ["checkpoint"]
    home.must("restore", f"{branch}-cp", "-b", branch, "--only", "shell")
    assert inside(home, branch, SHOW) == before


def test_parts_of_the_shell_that_cannot_be_restored_are_reported(home: Home, branch: str) -> None:
    make(home, branch)
    shown = f"said\n{inside(home, branch, 'umask')}/\n"
    inside(home, branch, "readonly x=3; cd /; rm -r /tmp/d")
    done = home.must("restore", f"{branch}-cp", "-b", branch, "--only", "shell")
    first, second = degraded(done)
    assert first == "the shell: the variable x stays as it is: it is read-only"
    assert second.startswith("the shell: cd: ")
    assert inside(home, branch, "say; umask; pwd") == shown


def test_the_state_of_another_kind_of_shell_is_refused(home: Home, person: Person) -> None:
    with session(home, person.name) as one, session(home, person.name, "--shell", "zsh") as other:
        for branch in (one, other):
            inside(home, branch, "x=1")  # wait until the shell has started
        home.must("checkpoint", f"{one}-cp", "-b", one)
        done = home.cli("restore", f"{one}-cp", "-b", other, "--only", "shell")
        assert done.code == 5
        assert "its shell is zsh" in done.stderr


def test_the_shell_of_a_copy_knows_its_branch(home: Home, branch: str) -> None:
    assert inside(home, branch, "echo $WAYPOINT_BRANCH") == f"{branch}\n"
    home.must("fork", branch, f"{branch}-f")
    try:
        fork = f"{branch}-f"
        assert inside(home, fork, "echo $WAYPOINT_BRANCH; sh -c 'echo $WAYPOINT_BRANCH'") == f"{fork}\n{fork}\n"
        home.must("checkpoint", f"{branch}-cp", "-b", branch)
        home.must("restore", f"{branch}-cp", "-b", fork)
        assert inside(home, fork, "echo $WAYPOINT_BRANCH") == f"{fork}\n"
        home.must("restore", f"{branch}-cp", "-b", fork, "--only", "shell")
        assert inside(home, fork, "echo $WAYPOINT_BRANCH") == f"{fork}\n"
        inside(home, fork, "WAYPOINT_BRANCH=mine")
        home.must("checkpoint", f"{fork}-cp", "-b", fork)
        home.must("restore", f"{fork}-cp", "-b", branch)
        assert inside(home, branch, "echo $WAYPOINT_BRANCH") == "mine\n"
    finally:
        home.cli("stop", f"{branch}-f", "--discard")


def test_a_checkpoint_right_after_the_start_has_the_shell(home: Home, branch: str) -> None:
    """The checkpoint waits for the user's startup files, which take 0.5 s."""
    inside(
        home, branch, "for file in ~/.bashrc ~/.zshrc; do echo 'sleep 0.5; early=yes' >~/new; mv -f ~/new $file; done"
    )
    home.must("stop", "--files", branch)
    home.must("restore", branch, "-b", branch, "--only", "files")  # starts a new shell
    home.must("checkpoint", f"{branch}-young", "-b", branch)
    inside(home, branch, "early=no")
    home.must("restore", f"{branch}-young", "-b", branch, "--only", "shell")
    assert inside(home, branch, "echo $early") == "yes\n"
    home.must("stop", "--files", branch)
    home.must("shell", branch, "-d")
    home.must("restore", f"{branch}-young", "-b", branch, "--only", "shell")  # this shell has just started, too


@pytest.mark.soak(part="timing")
def test_a_checkpoint_and_a_restore_wait_until_the_shell_is_at_its_prompt(home: Home, branch: str) -> None:
    """An exec returns when its command has ended; a slow prompt (which may run git, for example) follows later."""
    inside(home, branch, "PROMPT_COMMAND='sleep 0.4'; precmd() { sleep 0.4; }")
    inside(home, branch, "early=yes")
    home.must("checkpoint", f"{branch}-slow", "-b", branch)
    inside(home, branch, "early=no")
    home.must("restore", f"{branch}-slow", "-b", branch, "--only", "shell")
    assert inside(home, branch, "echo $early") == "yes\n"
