"""child.sh, the parent of a process of `waypoint run`, with the shells that a base may have as /bin/sh."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S

SCRIPT = Path(__file__).resolve().parents[2] / "shellwrap/child.sh"
FORMER = SCRIPT.with_name("run.sh")
SHELLS = [["dash"], ["bash", "--posix"], ["busybox", "sh"]]
# Earlier versions had this line in place of the line with `exec`. It also executed the shell's builtins.
EARLIER_LINE = '"$@" 3>&- # 3: the master of the terminal, if any; only this sh may keep it open'


@pytest.fixture(
    params=[
        *(pytest.param(shell, id=shell[0]) for shell in SHELLS[:2]),
        pytest.param(SHELLS[2], id="busybox", marks=pytest.mark.requires("busybox")),
    ]
)
def shell(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


def run(shell: list[str], status: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    argv = [*shell, str(SCRIPT), str(status), *words]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert status.read_text() == f"{done.returncode}\n"
    return done


@pytest.mark.parametrize("word", ["exit", "cd", "return", "export", "eval", "shift", "exec", "if", "local"])
def test_a_builtin_or_keyword_of_the_shell_is_not_run(shell: list[str], word: str, tmp_path: Path) -> None:
    done = run(shell, tmp_path / "status", word, "/dev/null")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == f"waypoint: {word}: the session has no such program\n"


@pytest.mark.parametrize("shell", SHELLS[:2])  # busybox may prefer its own applets to programs on the PATH
def test_a_program_is_run_even_if_the_shell_has_a_builtin_of_its_name(shell: list[str], tmp_path: Path) -> None:
    program = tmp_path / "printf"
    program.write_text('#!/bin/sh\nexec echo the program: "$@"\n')
    program.chmod(0o755)
    done = run(["env", f"PATH={tmp_path}:{os.environ['PATH']}", *shell], tmp_path / "status", "printf", r"\x41\n", "")
    assert (done.stdout, done.returncode) == ("the program: \\x41\\n \n", 0)


def test_the_exit_status_is_that_of_the_program_or_126_if_it_cannot_be_executed(
    shell: list[str], tmp_path: Path
) -> None:
    assert run(shell, tmp_path / "status", "sh", "-c", "exit 5").returncode == 5
    done = run(shell, tmp_path / "status", "/etc/passwd")
    assert done.returncode == 126
    assert "/etc/passwd" in done.stderr


def test_a_shell_in_the_script_of_an_earlier_version_continues_in_this_one(shell: list[str], tmp_path: Path) -> None:
    """A restored shell has the file open, at the offset after the line that runs the program."""
    now = FORMER.read_text()
    line = next(line for line in now.splitlines() if "exec" in line and not line.startswith("#"))
    script, status = tmp_path / "run.sh", tmp_path / "status"
    script.write_text(now.replace(line, EARLIER_LINE))
    assert script.stat().st_size == len(now)
    process = subprocess.Popen(
        [*shell, str(script), str(status), "sh", "-c", "echo begun; read go; exit 7"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"begun\n"
        script.write_text(now)  # overwrite the open file, which keeps its size
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 7
    assert status.read_text() == "7\n"
