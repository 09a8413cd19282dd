"""`waypoint run`: environment, closed pipes, a killed daemon. See also tests/acceptance/test_run_cli.py."""

import os
import signal
import subprocess

import pytest

from tests.cli.conftest import daemon_pid
from tests.cli.test_exec import read_until
from tests.homes import Home
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.privileged


def test_run_does_not_change_the_shell(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "cd /usr; mine=1")
    assert home.must("run", "-b", branch, "--", "sh", "-c", "echo $mine.").stdout == ".\n"


def test_run_adds_to_the_environment(home: Home, branch: str) -> None:
    done = home.must("run", "-b", branch, "--env", "A=1 2=$x", "--env", "B=", "--", "sh", "-c", 'echo "$A|${B-unset}"')
    assert done.stdout == "1 2=$x|\n"


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


def test_a_run_fails_if_its_daemon_dies(home: Home, branch: str) -> None:
    with home.background("run", "-b", branch, "--", "sh", "-c", "echo begun; exec sleep 60") as process:
        read_until(process, b"begun\n")
        os.kill(daemon_pid(home), signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 125
        assert process.stderr is not None
        assert b"next:" in process.stderr.read()
