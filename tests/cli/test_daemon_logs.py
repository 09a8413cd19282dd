"""`waypoint daemon logs`: content, size and permissions of the log."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_setup import as_nobody
from tests.homes import Home, open_home
from tests.waiting import wait_until

pytestmark = pytest.mark.privileged

FULL_BYTES = (4 << 20) + 1


def log_of(home: Home) -> Path:
    return home.path / "daemon.log"


@pytest.fixture(scope="module")
def quiet() -> Iterator[Home]:
    """A home with a stopped daemon, so that the log does not change."""
    with open_home("logs") as home:
        home.must("daemon", "stop")
        wait_until(lambda: "] ends: stopped\n" in log_of(home).read_text(), "the supervisor has ended")
        yield home


def test_daemon_logs_work_without_a_daemon(quiet: Home) -> None:
    printed = quiet.must("daemon", "logs").stdout
    assert printed == log_of(quiet).read_text()
    assert "] serving\n" in printed
    assert "] ends: stopped\n" in printed
    assert quiet.cli("daemon", "status").code == 4


@pytest.mark.parametrize("limit", [1, 3, 10_000])
def test_daemon_logs_print_the_last_lines_of_both_files(quiet: Home, limit: int) -> None:
    older = Path(f"{log_of(quiet)}.1")
    older.write_text("".join(f"old {number}\n" for number in range(100)))
    try:
        lines = (older.read_text() + log_of(quiet).read_text()).splitlines()
        assert quiet.must("daemon", "logs", "-n", str(limit)).stdout.splitlines() == lines[-limit:]
        assert quiet.must("daemon", "logs").stdout.splitlines() == lines
    finally:
        older.unlink()


def next_line(process: "subprocess.Popen[bytes]", text: str) -> bytes:
    """Wait for the next line that contains `text`."""
    assert process.stdout is not None
    while text.encode() not in (line := process.stdout.readline()):
        assert line, "the command has ended"
    return line


@pytest.mark.soak(part="setup")
@pytest.mark.parametrize("limit", [[], ["-n", "1"], ["-n", "1000"]], ids=str)
def test_daemon_logs_follow_into_the_next_file(limit: list[str]) -> None:
    with open_home("follow") as home:
        first = log_of(home).read_text().splitlines()
        command = home.argv("daemon", "logs", "-f", *limit)
        with subprocess.Popen(command, env=home.env, stdout=subprocess.PIPE) as follower:
            shown = next_line(follower, "daemon[").decode().rstrip("\n")
            assert shown == (first[-1] if limit == ["-n", "1"] else next(line for line in first if "daemon[" in line))
            os.truncate(log_of(home), FULL_BYTES)
            home.must("daemon", "stop")
            next_line(follower, "] stopping")
            next_line(follower, "] ends: stopped")
            follower.terminate()


@pytest.mark.soak(part="faults")
def test_the_log_is_bounded_while_the_daemon_runs() -> None:
    with open_home("bounded") as home:
        os.truncate(log_of(home), FULL_BYTES)
        home.must("daemon", "stop")
        assert Path(f"{log_of(home)}.1").stat().st_size == FULL_BYTES
        written = log_of(home).read_text()
        assert "] stopping\n" in written  # the daemon has begun the new file
        wait_until(lambda: "] ends: stopped\n" in log_of(home).read_text(), "the supervisor writes to that file too")
        assert len(list(home.path.glob("daemon.log*"))) == 2


def test_only_root_can_read_the_log_and_it_has_no_secrets() -> None:
    with open_home("private") as home:
        home.must("daemon", "stop")
        log_of(home).chmod(0o644)
        home.must("shell", "-d", env={"API_TOKEN": "hunter2"})
        home.must(
            "exec", "--env", "API_TOKEN=hunter2", "--", "echo $API_TOKEN; : hunter2", env={"API_TOKEN": "hunter2"}
        )
        home.must("run", "--", "echo", "hunter2")
        home.must("checkpoint", "c", "-m", "hunter2")
        home.must("stop", "--files", "--all")
        home.must("daemon", "stop")
        assert log_of(home).stat().st_mode & 0o777 == 0o600
        assert "serving" in home.must("daemon", "logs").stdout
        assert "hunter2" not in home.must("daemon", "logs").stdout


@pytest.mark.requires("public-checkout")
def test_a_user_without_access_to_the_log_is_told_to_use_sudo(quiet: Home) -> None:
    done = as_nobody(quiet, "daemon", "logs")
    assert done.returncode == 3
    assert f"next: sudo waypoint --home {quiet.path} daemon logs\n" in done.stderr


def test_a_home_without_a_log_is_an_error(tmp_path: Path) -> None:
    for words in ([], ["-f"]):
        done = Home(tmp_path).cli("daemon", "logs", *words)
        assert done.code == 2
        assert "there is no log in this home" in done.stderr
