"""Many forks at once: the descriptors of the daemon, sessions that cannot start, limits, an interrupted command."""

import os
import resource
import subprocess
from collections.abc import Iterator

import pytest

from tests.acceptance.sessions import begin
from tests.homes import Home, open_home
from waypoint.launch.criu_process import LaunchedCriu
from waypoint.launch.launcher_link import Started

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "criu", "overlay", "cgroup2")]

COUNT = 12


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with open_home("many") as made:
        begin(made, "origin")
        made.must("exec", "-b", "origin", "--", "sleep 100000 &")
        made.must("checkpoint", "ready", "-b", "origin", "--tier", "live")
        yield made


def start_daemon(home: Home, soft: int, hard: int) -> None:
    """Replace the daemon of the home by one that begins with these limits of open files."""
    home.must("daemon", "stop")
    limited = ["prlimit", f"--nofile={soft}:{hard}", "--", *home.argv("ps")]
    subprocess.run(limited, env=home.env, check=True, capture_output=True)


def test_a_daemon_that_begins_with_few_descriptors_serves_many_sessions(home: Home) -> None:
    start_daemon(home, 128, 4096)
    forks = home.must("fork", "ready", "-n", str(COUNT), "--prefix", "few", "--", "echo {i}").stdout
    assert sorted(line.rpartition("| ")[2] for line in forks.splitlines()) == sorted(map(str, range(1, COUNT + 1)))
    home.must("stop", "--discard", *(f"few-{number}" for number in range(1, COUNT + 1)))


def test_forks_for_which_the_daemon_lacks_descriptors_are_refused(home: Home) -> None:
    start_daemon(home, 200, 200)
    refused = home.cli("fork", "ready", "-n", str(COUNT), "--prefix", "refused", "--json")
    assert refused.code == 4
    assert refused.json()["error"]["code"] == "too-many-sessions"
    assert [row["branch"] for row in home.must("ps", "--json").json()] == ["origin"]
    start_daemon(home, 1024, 4096)


def test_the_end_of_a_criu_with_a_high_descriptor_is_seen() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with subprocess.Popen(["true"]) as ended:
        low = os.pidfd_open(ended.pid)
        os.dup2(low, 1500)
        os.close(low)
        assert LaunchedCriu(Started(ended.pid, [1500], 0), "").wait() == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
