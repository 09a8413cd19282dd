"""State of a session's shell from one exec to the next: jobs, sourced files, processes of `run`.

test_survives.py tests the rest of the state, before and after a capture.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.sessions import session
from tests.homes import Completed, Home
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("zsh")]


@dataclass(frozen=True, slots=True)
class Shell:
    """A live session, its user and the kind of its shell."""

    home: Home
    branch: str
    user: str
    is_zsh: bool

    def exec(self, *words: str, stdin: bytes | None = None) -> Completed:
        return self.home.cli("exec", "-b", self.branch, *words, stdin=stdin)

    def output_of(self, text: str) -> str:
        """Run a command, which must succeed; return its output."""
        done = self.exec("--", text)
        assert done.code == 0, f"{text}: exit {done.code}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(
    params=[
        pytest.param("root", marks=pytest.mark.soak(part="matrix")),
        "person",
        pytest.param("zsh_person", marks=pytest.mark.soak(part="matrix")),
    ]
)
def shell(home: Home, request: pytest.FixtureRequest) -> Iterator[Shell]:
    user = "root" if request.param == "root" else request.getfixturevalue(request.param).name
    with session(home, user, "--cwd", "/tmp") as branch:
        yield Shell(home, branch, user, request.param == "zsh_person")


def test_the_session_runs_the_login_shell_of_its_user(shell: Shell) -> None:
    assert shell.output_of("id -un") == f"{shell.user}\n"
    kind = "zsh" if shell.is_zsh else "bash"
    assert shell.output_of("echo ${ZSH_VERSION:+zsh}${BASH_VERSION:+bash} $SHELL") == f"{kind} /bin/{kind}\n"
    assert "i" in shell.output_of("echo $-")
    assert shell.output_of("[ -t 1 ] && [ -t 2 ] && echo on a terminal; tty </dev/tty") == "on a terminal\n/dev/tty\n"


def test_jobs_keep_their_numbers_and_can_be_waited_for(shell: Shell) -> None:
    shell.exec("--", "sleep 1000 & first=$!; sleep 2000 &")
    assert shell.output_of("kill -0 $! $first && echo both run") == "both run\n"
    # zsh gives job numbers to the running exec and its `eval` too, so the first job has the number 3.
    one, two = (3, 4) if shell.is_zsh else (1, 2)
    listed = shell.output_of("jobs").splitlines()
    assert [re.sub(r"\W+", " ", line).split()[0] for line in listed] == [str(one), str(two)]
    assert ["sleep 1000" in listed[0], "sleep 2000" in listed[1]] == [True, True]
    shell.output_of(f"kill %{one}")
    assert shell.exec("--", "wait $first").code == 143
    assert "sleep 2000" in shell.output_of(f"jobs %{two}")
    shell.exec("--", "(exit 9) & wait $!")
    shell.exec("--", "sh -c 'exit 7' & job=$!")
    assert shell.exec("--", "wait $job").code == 7
    shell.exec("--", f"kill %{two}; wait %{two}")
    assert "sleep 2000" not in shell.output_of("jobs")


def test_a_job_continues_while_other_commands_run(shell: Shell) -> None:
    shell.exec("--", "rm -f go; { until [ -e go ]; do sleep 0.02; done; echo was woken >woken; } &")
    assert shell.output_of("echo meanwhile") == "meanwhile\n"
    shell.output_of("touch go; wait; true")
    assert shell.output_of("cat woken") == "was woken\n"


def test_a_stopped_job_can_be_continued(shell: Shell) -> None:
    shell.exec("--", "sh -c 'kill -STOP $$; echo continued >went-on'")
    assert any(word in shell.output_of("jobs") for word in ("Stopped", "suspended"))
    shell.output_of("fg >/dev/null; true")
    assert shell.output_of("cat went-on; jobs") == "continued\n"


def test_an_exit_trap_runs_with_the_command_that_ends_the_shell(shell: Shell) -> None:
    shell.exec("--", "trap 'echo goodbye' EXIT")
    done = shell.exec("--", "exit 3")
    assert (done.code, "goodbye" in done.stdout) == (3, True)


def test_sourced_files_and_virtual_environments_work(shell: Shell) -> None:
    place = shell.output_of("mktemp -d").strip()
    shell.output_of(f"python3 -m venv --without-pip {place}; . {place}/bin/activate")
    assert shell.output_of("command -v python; echo $VIRTUAL_ENV") == f"{place}/bin/python\n{place}\n"
    shell.output_of("deactivate")
    assert shell.output_of("echo ${VIRTUAL_ENV-none}") == "none\n"


def test_files_and_processes_are_shared_with_run(shell: Shell) -> None:
    shell.exec("--", "echo from exec >shared; sleep 4321 &")
    home, branch = shell.home, shell.branch
    assert home.must("run", "-b", branch, "--", "cat", "/tmp/shared").stdout == "from exec\n"
    home.must("run", "-b", branch, "--", "pkill", "-f", "sleep 4321")
    assert shell.exec("--", "wait $!").code == 143
    assert not Path("/tmp/shared").exists()


@pytest.mark.soak(part="load")
def test_a_hundred_commands_leave_nothing_behind(shell: Shell) -> None:
    names = "typeset -p | grep -o '__wp[a-z_]*' | sort -u"
    # The shell lists its descriptors itself (`echo`): zsh has one more while it starts a program.
    count = f"echo /proc/$$/fd/*; ls -A /run/waypoint >files; wc -w <files; {names}; jobs"
    shell.output_of("true")
    before = shell.output_of(count)
    session = Client(shell.home.path).session(shell.branch)
    for number in range(100):
        assert session.exec(f"echo {number}").output == f"{number}\n".encode()
    assert shell.output_of(count) == before
