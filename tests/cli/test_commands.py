"""The commands ps, stop, logs, daemon and doctor."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Spawn, daemon_pid, exit_status
from tests.cli.test_exec import read_until
from tests.collecting import collecting
from tests.homes import CLI_TIMEOUT_S, Home
from tests.places import ROOT
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.privileged


def test_a_home_that_was_not_set_up_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "dev"), "waypoint", "--home", str(tmp_path / "none"), "ps"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "next:" in done.stderr
    assert not (tmp_path / "none").exists()


def test_ps_lists_live_sessions(home: Home, branch: str) -> None:
    [found] = [one for one in home.must("ps", "--json").json() if one["branch"] == branch]
    assert found["state"] == "live"
    assert found["pid"] > 0
    assert found["uptime_s"] >= 0
    assert found["processes"] >= 2
    assert found["attached"] == 0
    assert found["resident_bytes"] == found["shared_bytes"] + found["own_bytes"] > found["own_bytes"] > 0
    assert {"memory_bytes", "upper_bytes", "user", "base", "net", "cwd", "created", "id"} <= set(found)
    heading, *rows = home.must("ps").stdout.splitlines()
    assert heading.split()[:3] == ["BRANCH", "STATE", "PID"]
    [row] = [row for row in rows if row.startswith(branch)]
    assert row.split()[1:3] == ["live", str(found["pid"])]
    assert "\x1b" not in heading, "colours in a pipe"


def test_ps_all_lists_branches_that_can_be_started_again(home: Home, branch: str) -> None:
    home.must("stop", "--files", branch)
    assert branch not in [one["branch"] for one in home.must("ps", "--json").json()]
    [found] = [one for one in home.must("ps", "--all", "--json").json() if one["branch"] == branch]
    assert (found["state"], found["pid"]) == ("ended", None)
    assert found["capture"]


@pytest.mark.requires("criu")
def test_a_branch_with_kept_processes_is_listed_as_parked(home: Home, branch: str) -> None:
    home.must("checkpoint", f"{branch}-cp", "-b", branch, "--park")
    [found] = [one for one in home.must("ps", "--all", "--json").json() if one["branch"] == branch]
    assert found["state"] == "parked"
    [row] = [line.split() for line in home.must("branch").stdout.splitlines() if line.split()[0] == branch]
    assert row[1] == "parked"


def test_a_closed_pipe_ends_a_command_silently(home: Home, branch: str) -> None:
    for verb in ("ps", f"logs {branch}"):
        command = " ".join(home.argv(*verb.split()))
        done = subprocess.run(
            ["/bin/bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"],
            env=home.env,
            capture_output=True,
            check=True,
        )
        assert done.stderr == b""
        assert done.stdout in (b"141\n", b"0\n")  # depends on which process ends first


def test_stop_keeps_the_files_and_prints_the_capture(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "echo kept > /var/tmp/kept")
    [found] = home.must("stop", "--files", branch, "--json").json()
    assert found["branch"] == branch
    assert found["capture"]
    home.must("shell", branch, "-d")
    assert home.must("exec", "-b", branch, "--", "cat /var/tmp/kept").stdout == "kept\n"


def test_stop_can_discard_the_files(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "echo kept > /var/tmp/kept")
    done = home.must("stop", branch, "--discard")
    assert done.stdout == f"{branch}  discarded\n"
    assert branch not in [one["branch"] for one in home.must("ps", "--all", "--json").json()]


def test_a_discard_that_the_user_refuses_has_an_exit_status(home: Home, branch: str, on_terminal: Spawn) -> None:
    home.must("exec", "-b", branch, "--", "echo kept > /var/tmp/kept")
    terminal = on_terminal("stop", branch, "--discard")
    terminal.expect_exact(b"Discard the session? [y/N]: ")
    terminal.sendline("n")
    assert exit_status(terminal) == 130
    assert home.must("exec", "-b", branch, "--", "cat /var/tmp/kept").stdout == "kept\n"


def test_an_unknown_name_among_several_leaves_all_as_they_are(home: Home, branch: str) -> None:
    commands = ("stop {b} nosuch", "stop nosuch {b} --discard", "stop {b} b//d --json", "stop --all {b}")
    commands += ("branch delete --stop {b} nosuch", "rm {b}-cp nosuch", "fork {b}-cp {b}-x b//d", "du {b} nosuch")
    home.must("checkpoint", f"{branch}-cp", "-b", branch)
    before = home.must("op", "log", "-n", "1", "--json").json()
    with collecting() as row:
        for command in commands:
            with row(command):
                done = home.cli(*command.format(b=branch).split())
                assert done.code == 2
                assert not done.stdout or done.json().get("stopped", []) == []
    assert home.must("op", "log", "-n", "1", "--json").json() == before
    home.must("rm", f"{branch}-cp", f"{branch}-cp")
    home.must("branch", "delete", "--stop", branch, branch)


def test_stop_takes_its_branch_from_the_option_and_the_environment_too(home: Home, branch: str) -> None:
    assert home.must("stop", "--files", "-b", branch).stdout.startswith(branch)
    home.must("shell", branch, "-d")
    assert home.must("stop", "--files", env={"WAYPOINT_BRANCH": branch}).stdout.startswith(branch)


def test_logs_print_the_output_of_the_terminal(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "echo seen$((1+1))")
    assert "seen2" in home.must("logs", branch).stdout
    assert "seen2" in home.must("logs", "-b", branch).stdout
    assert home.cli("logs", "nosuch").code == 2


def test_logs_follow_until_the_session_ends(home: Home, branch: str) -> None:
    with home.background("logs", "-f", branch) as process:
        home.must("exec", "-b", branch, "--", "echo now$((1+1))")
        read_until(process, b"now2")
        home.must("stop", "--files", branch)
        assert process.wait(PATIENCE_S) == 0


# --- daemon and doctor


def test_daemon_stop_leaves_sessions_running_and_the_next_command_starts_it(home: Home, branch: str) -> None:
    home.must("exec", "-b", branch, "--", "here=1")
    pid = daemon_pid(home)
    home.must("daemon", "stop")
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the daemon has ended and was reaped")
    status = home.cli("daemon", "status")
    assert (status.code, status.stdout) == (4, "")
    assert home.must("exec", "-b", branch, "--", "echo $here").stdout == "1\n"
    assert daemon_pid(home) != pid


def test_stopping_a_stopped_daemon_succeeds_and_starts_none(home: Home) -> None:
    home.must("daemon", "stop")
    home.must("daemon", "stop")
    assert home.cli("daemon", "status").code == 4


def test_daemon_status_prints_the_facts(home: Home) -> None:
    found = home.must("ps", "--json") and home.must("daemon", "status", "--json").json()
    assert {"pid", "version", "sessions", "home", "started"} <= set(found)
    assert str(found["pid"]) in home.must("daemon", "status").stdout


def test_a_home_may_be_named_before_the_verb(home: Home) -> None:
    for verb in ("ps", "daemon status", "branch list", "op log", "shell elsewhere -d"):
        home.must("--home", str(home.path), *verb.split(), env={"WAYPOINT_HOME": "/nonexistent"})


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_daemon_run_serves_until_a_signal(home: Home, name: str) -> None:
    home.must("daemon", "stop")
    with subprocess.Popen(home.argv("daemon", "run"), env=home.env, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"serving" in process.stderr.readline()
        daemon_pid(home)
        process.send_signal(signal.Signals[name])
        assert process.wait(PATIENCE_S) == 0
    assert home.cli("daemon", "status").code == 4


def test_daemon_run_ends_when_the_daemon_is_stopped_elsewhere(home: Home) -> None:
    home.must("ps")
    with subprocess.Popen(home.argv("daemon", "run"), env=home.env, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"serving" in process.stderr.readline()
        home.must("daemon", "stop")
        assert process.wait(PATIENCE_S) == 0


def test_many_commands_at_once_start_one_daemon(home: Home) -> None:
    home.must("daemon", "stop")
    many = [
        subprocess.Popen(home.argv("ps", "--json"), env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(8)
    ]
    for process in many:
        output, errors = process.communicate(timeout=CLI_TIMEOUT_S)
        assert (process.returncode, errors) == (0, b"")
        assert isinstance(json.loads(output), list)
    log = (home.path / "daemon.log").read_text()
    last = log.rpartition(" ends: ")[2]
    assert len(re.findall(r"daemon \d+ started", last)) == 1


def test_doctor_reports_the_capabilities(home: Home) -> None:
    done = home.cli("doctor", "--json")
    found = done.json()
    assert found
    assert all({"capability", "state", "why", "remedy"} <= set(one) for one in found)
    lacking = [one for one in found if one["state"] == "missing" and one["required_for"] in ("session", "live")]
    assert done.code == (3 if lacking else 0)
    assert home.cli("doctor").stdout.startswith("CAPABILITY")
