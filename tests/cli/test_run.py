"""`waypoint run`."""

import os
import signal
import subprocess

import pytest

from tests.cli.conftest import Spawn, daemon_pid, exit_status, is_cooked
from tests.cli.test_exec import read_until, started
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.privileged


def test_run_passes_on_stdout_stderr_and_status(home: Home, branch: str) -> None:
    done = home.cli("run", "-b", branch, "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.code) == ("out\n", "err\n", 3)


def test_words_become_the_arguments_of_the_process_unchanged(home: Home, branch: str) -> None:
    assert home.must("run", "-b", branch, "printf", "%s|", "a b", "$x", "", "--json").stdout == "a b|$x||--json|"


def test_run_does_not_change_the_shell(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "cd /usr; mine=1")
    assert home.must("run", "-b", branch, "--", "sh", "-c", "echo $mine.").stdout == ".\n"


def test_run_starts_in_the_given_directory(home: Home, branch: str) -> None:
    assert home.must("run", "-b", branch, "--cwd", "/usr/lib", "pwd").stdout == "/usr/lib\n"


def test_run_adds_to_the_environment(home: Home, branch: str) -> None:
    done = home.must("run", "-b", branch, "--env", "A=1 2=$x", "--env", "B=", "--", "sh", "-c", 'echo "$A|${B-unset}"')
    assert done.stdout == "1 2=$x|\n"


def test_run_without_i_has_no_input(home: Home, branch: str) -> None:
    assert home.must("run", "-b", branch, "--", "wc", "-c", stdin=b"some").stdout.strip() == "0"


def test_run_with_i_streams_input(home: Home, branch: str) -> None:
    content = os.urandom(3_000_000)
    assert home.must("run", "-b", branch, "-i", "--", "cat", stdin=content).raw == content


def test_a_missing_program_has_the_exit_status_of_a_shell(home: Home, branch: str) -> None:
    done = home.cli("run", "-b", branch, "--", "/no/such/program")
    assert done.code == 127
    assert "/no/such/program" in done.stderr


def test_the_process_gets_sigpipe_if_the_reader_is_gone(home: Home, branch: str) -> None:
    command = " ".join(home.argv("run", "-b", branch, "--", "yes"))
    done = subprocess.run(
        ["/bin/bash", "-c", f"{command} | head -n 1; echo ${{PIPESTATUS[0]}}"],
        env=home.env,
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout == b"y\n141\n"
    wait_until(lambda: home.cli("run", "-b", branch, "--", "pgrep", "-x", "yes").stdout == "", "the process has ended")


def test_signals_to_waypoint_run_reach_the_process(home: Home, branch: str) -> None:
    with started(home, "run", "-b", branch, "--", "sh", "-c", "echo begun; exec sleep 60") as process:
        read_until(process, b"begun\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143


def test_a_run_fails_if_its_daemon_dies(home: Home, branch: str) -> None:
    with started(home, "run", "-b", branch, "--", "sh", "-c", "echo begun; exec sleep 60") as process:
        read_until(process, b"begun\n")
        os.kill(daemon_pid(home), signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 125
        assert process.stderr is not None
        assert b"next:" in process.stderr.read()


@pytest.mark.soak(part="timing")
def test_with_t_the_process_has_a_terminal_of_the_same_size(branch: str, on_terminal: Spawn) -> None:
    terminal = on_terminal("run", "-b", branch, "-it", "--", "bash", "--norc", "-i")
    terminal.expect(b"[#$] ")
    terminal.send(b"tty; stty size; echo $TERM\r")
    terminal.expect(b"/dev/pts/\\d+\r\n30 100\r\nxterm-256color\r\n")
    terminal.setwinsize(20, 50)
    terminal.send(b"stty size\r")
    terminal.expect(b"20 50\r\n")
    terminal.send(b"exit 5\r")
    assert exit_status(terminal) == 5
    assert is_cooked(terminal)
