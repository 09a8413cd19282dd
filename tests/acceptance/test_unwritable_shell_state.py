"""A shell that cannot write its state to a file: the state is kept in another way, or its loss is reported."""

import pytest

from tests.acceptance.sessions import inside, session
from tests.answers import texts, unusual
from tests.homes import Home

pytestmark = pytest.mark.privileged

LOST = "the shell's variables, functions and folder: the shell could not write them (a full disk, or ulimit -f)"
ON_THE_TERMINAL = "waypoint: this shell's variables and functions cannot be written"
# Larger than the free rest of a block, so a state does not fit in the place of an earlier state.
MAKE_STATE = "x=kept; v=$(head -c 20000 /dev/zero | tr '\\0' v)"
FILL = (
    "cd /root; head -c 100M /dev/zero >fill; "
    "for n in $(seq 1000); do head -c 100 /dev/zero >a$n; head -c 5000 /dev/zero >b$n; done; cd"
)
SHELLS = pytest.mark.parametrize("shell", ["bash", pytest.param("zsh", marks=pytest.mark.requires("zsh"))])


@pytest.mark.soak(part="disks")
@SHELLS
@pytest.mark.requires("simple-quotas")
def test_the_state_of_a_shell_on_a_full_disk_is_kept(home: Home, shell: str) -> None:
    with session(home, "root", "--disk", "32M", "--shell", shell) as branch:
        inside(home, branch, MAKE_STATE)
        assert "quota exceeded" in home.cli("exec", "-b", branch, "--", FILL).stdout.lower()
        inside(home, branch, "true")
        assert ON_THE_TERMINAL in home.must("logs", branch).stdout
        (facts,) = [one for one in home.must("ps", "--json").json() if one["branch"] == branch]
        assert texts(facts["degraded"]) == [LOST]
        taken = home.must("checkpoint", "full", "-b", branch, "--tier", "files", "--json").json()
        assert not unusual(taken["degraded"])
        stopped = home.must("stop", "--files", branch)
        assert stopped.stderr == ""
        home.must("shell", branch, "-d")
        assert inside(home, branch, "echo $x") == "kept\n"
        home.must("fork", "full", "copy")
        assert inside(home, "copy", "echo $x") == "kept\n"
        home.must("stop", "copy", "--discard")
    home.must("rm", "full")


@pytest.mark.requires("simple-quotas")
def test_commands_run_on_a_disk_without_room_for_a_file(home: Home) -> None:
    with session(home, "root", "--disk", "32M") as branch:
        inside(home, branch, "(sleep 1000 &); x=kept; say() { echo said; }")
        fill = "dd if=/dev/zero of=/root/b bs=1M count=50; for n in $(seq 300); do echo x >/root/b.$n; done"
        assert "b.300: Disk quota exceeded" in home.cli("exec", "-b", branch, "--", fill).stdout
        for status in (0, 3):
            done = home.cli("run", "-b", branch, "--", "sh", "-c", f"exit {status}")
            assert (done.code, done.stderr) == (status, "")
        for _ in range(2):
            ended = home.cli("exec", "-b", branch, "--json", "--", "cd /nope || exit 1").json()
            assert (ended["exit"], ended["ended"], ended["new_shell"]) == (1, False, True)
            assert not ended["state_lost"]
            assert inside(home, branch, "echo $x $(say); pgrep -c sleep; ls -A /dev/shm | grep -v cmd") == (
                "kept said\n1\n.waypoint-req\n"
            )


@pytest.mark.soak(part="load")
@SHELLS
def test_a_shell_captured_before_its_first_prompt_loses_no_state(home: Home, shell: str) -> None:
    with session(home, "root", "--shell", shell) as branch:
        wait = "while test -e /slow; do sleep 0.1; done"
        inside(home, branch, f"x=precious; cd /usr; f() {{ echo f; }}; echo '{wait}' >>~/.{shell}rc; touch /slow")
        home.must("stop", "--files", branch)
        for _ in range(2):
            assert "degraded: the shell's state was not restored: " in home.must("shell", branch, "-d").stderr
            home.must("stop", "--files", branch)
        home.must("shell", branch, "-d")
        home.must("checkpoint", "slow", "-b", branch, "--tier", "files")
        home.must("run", "-b", branch, "--", "rm", "/slow")
        inside(home, branch, "true")
        home.must("restore", "slow", "-b", branch, "--only", "shell")
        assert inside(home, branch, "echo $x $PWD $(f)") == "precious /usr f\n"
    home.must("rm", "slow")


@SHELLS
def test_a_shell_that_cannot_write_files_works_and_the_loss_of_its_state_is_reported(home: Home, shell: str) -> None:
    with session(home, "root", "--shell", shell) as branch:
        inside(home, branch, "x=kept; ulimit -f 1")
        assert inside(home, branch, "echo $x") == "kept\n"
        assert ON_THE_TERMINAL in home.must("logs", branch).stdout
        (facts,) = [one for one in home.must("ps", "--json").json() if one["branch"] == branch]
        assert texts(facts["degraded"]) == [LOST]
        taken = home.must("checkpoint", "small", "-b", branch, "--tier", "files", "--json")
        assert LOST in texts(taken.json()["degraded"])
        (stopped,) = home.must("stop", "--files", branch, "--json").json()
        assert texts(stopped["degraded"]) == [LOST]
        home.must("shell", branch, "-d")
        inside(home, branch, "ulimit -f 1")
        assert f"degraded: {LOST}\n" in home.must("stop", "--files", branch).stderr
    home.must("rm", "small")
