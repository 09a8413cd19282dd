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


def test_a_run_ends_at_its_timeout_and_prints_json(home: Home, branch: str) -> None:
    script = "trap '' INT TERM; echo out; echo err >&2; printf '\\377' >&2; while :; do sleep 1; done"
    done = home.cli("run", "-b", branch, "--json", "--timeout", "1", "--", "sh", "-c", script)
    found = done.json()
    assert done.code == 124
    assert {name: found.get(name) for name in ("exit", "by", "ended", "signal", "stdout", "stderr_base64")} == {
        "exit": 124,
        "by": "waypoint",
        "ended": False,
        "signal": "KILL",
        "stdout": "out\n",
        "stderr_base64": "ZXJyCv8=",
    }
    ended = home.cli("run", "-b", branch, "--json", "--timeout", "60", "--", "sh", "-c", "exit 3").json()
    assert (ended["exit"], ended["by"], ended["stdout"], ended["signal"]) == (3, "command", "", None)


def test_no_color_reaches_the_command(home: Home, branch: str) -> None:
    for verb in ("exec", "run"):
        words = (verb, "-b", branch, "--no-color", "--", "sh", "-c", "echo $NO_COLOR $TERM")
        assert home.must(*words).stdout == "1 dumb\n"
    assert home.must("exec", "-b", branch, "--", "echo $NO_COLOR").stdout == "\n"


def test_a_run_fails_if_its_daemon_dies(home: Home, branch: str) -> None:
    with home.background("run", "-b", branch, "--", "sh", "-c", "echo begun; exec sleep 60") as process:
        read_until(process, b"begun\n")
        os.kill(daemon_pid(home), signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 125
        assert process.stderr is not None
        assert b"next:" in process.stderr.read()
