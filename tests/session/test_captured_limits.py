"""Captured processes that use more memory or open files than the new session's limits or the daemon allow."""

import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from tests.homes import Home, open_home

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

LOW = 2000
MIB = 1 << 20


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with open_home("captured-limits") as made:
        made.must("shell", "large", "-d", "--user", "root", "--memory", "256M")
        made.must("exec", "-b", "large", "--", f"head -c {60 * MIB} /dev/zero >/dev/shm/zeros")
        made.must("checkpoint", "point", "-b", "large", "--tier", "live")
        yield made


def hard_limit(home: Home, branch: str) -> int:
    return int(home.must("exec", "-b", branch, "--", "ulimit -Hn").stdout)


def test_a_dev_shm_larger_than_the_new_limit_is_refused(home: Home) -> None:
    refused = home.cli("shell", "small", "-d", "--from", "point", "--memory", "100M")
    assert refused.code == 5
    assert "its files in /dev/shm need 60 MiB, but may have 50 MiB, half of the session's memory" in refused.stderr
    assert "small" not in home.must("ps", "--all").stdout
    advice = re.search(r"waypoint (shell NEW --from \w+ --memory \w+)", refused.stderr)
    assert advice, refused.stderr
    home.must(*shlex.split(advice[1]), "-d")
    assert home.must("exec", "-b", "NEW", "--", "stat -c %s /dev/shm/zeros").stdout == f"{60 * MIB}\n"
    home.must("stop", "NEW", "--discard")


def start_daemon_with(home: Home, *words: str) -> None:
    """Start the home's daemon with a low hard limit for open files. `words`: a command that runs its arguments."""
    home.must("daemon", "stop")
    argv = [*words, "prlimit", f"--nofile={LOW}:{LOW}", *home.argv("ps")]
    subprocess.run(argv, env=home.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)


def test_a_hard_limit_that_the_daemon_may_not_raise_is_reported(home: Home) -> None:
    before = hard_limit(home, "large")
    assert before > LOW
    start_daemon_with(home, "setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
    said = f"degraded: RLIMIT_NOFILE: the hard limit is {LOW}, was {before}: the daemon may not raise it\n"
    for words in (("fork", "point", "low"), ("restore", "point", "-b", "low"), ("shell", "low", "-d")):
        assert said in home.must(*words).stderr
        assert hard_limit(home, "low") == LOW
    home.must("stop", "low", "--discard")
    home.must("daemon", "stop")


@pytest.mark.requires("own-limits")
def test_a_hard_limit_that_the_daemon_may_raise_is_kept(home: Home) -> None:
    before = hard_limit(home, "large")
    start_daemon_with(home)
    assert "RLIMIT" not in home.must("fork", "point", "same").stderr
    assert hard_limit(home, "same") == before > LOW
    home.must("stop", "same", "--discard")
    home.must("daemon", "stop")
