"""Many forks at once: the descriptors of the daemon, sessions that cannot start, limits, an interrupted command."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.sessions import begin, facts
from tests.homes import Home, open_home
from tests.session import ledger
from tests.session.pauses import NO_STANDBYS, Pauses
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.steps import Step
from waypoint.client import Client
from waypoint.launch.criu_process import LaunchedCriu
from waypoint.launch.launcher_link import Started
from waypoint.linux.storage import btrfs
from waypoint.model.records import LiveRow
from waypoint.records.names import Names

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "criu", "overlay", "cgroup2")]

COUNT = 12
ASK_KERNEL = "import ctypes; print(max(0, ctypes.CDLL(None).prctl(68, 0, 0, 0, 0)))"  # PR_GET_MEMORY_MERGE
IS_MERGED = f"python3 -c '{ASK_KERNEL}'"


@pytest.fixture(scope="module")
def home(pauses: Pauses) -> Iterator[Home]:
    with open_home("many", settings=NO_STANDBYS) as made:
        made.must("daemon", "stop")
        made.must("ps", env=pauses.env)
        begin(made, "origin")
        made.must("exec", "-b", "origin", "--", "sleep 100000 &")
        made.must("checkpoint", "ready", "-b", "origin", "--tier", "live")
        yield made


@pytest.fixture(autouse=True)
def no_forks_left(home: Home) -> Iterator[None]:
    yield
    forks = [name for name in live(home) if name != "origin"]
    if forks:
        home.must("stop", "--discard", *forks)
    ledger.check(home)


def live(home: Home) -> list[str]:
    return [row["branch"] for row in home.must("ps", "--json").json()]


def branches(home: Home) -> list[str]:
    return [row["name"] for row in home.must("branch", "list", "--json").json()]


def test_each_fork_gets_the_limits_that_the_command_asks_for(home: Home) -> None:
    made = home.must("fork", "ready", "limited", "--disk", "48M", "--", "echo {i}")
    assert made.stdout == "limited | 1\n"
    assert [facts(home, name)["limits"]["disk_bytes"] for name in ("limited", "origin")] == [48 << 20, None]


def test_the_timeout_ends_the_command_in_each_fork(home: Home) -> None:
    done = home.cli("fork", "ready", "-n", "2", "--prefix", "late", "--timeout", "0.2", "--json", "--", "sleep 1000")
    assert done.code == 1
    assert [one["exit"] for one in done.json()] == [124, 124]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_fork_that_cannot_start_is_reported_and_the_others_continue(
    home: Home, pauses: Pauses, *, as_json: bool
) -> None:
    words = ["fork", "ready", "-n", "3", "--prefix", "some", *(["--json"] if as_json else []), "--", "echo {i}"]
    with pauses.armed(Step.RESERVED) as armed, ThreadPoolExecutor() as threads:
        done = threads.submit(home.cli, *words)
        assert armed.wait() == Step.RESERVED
        number = hinder_the_fork_that_waits(home)
        armed.go_on()
        said = done.result()
    others = [one for one in (1, 2, 3) if one != number]
    assert said.code == 1
    if as_json:
        records = said.json()
        assert [one["branch"] for one in records] == ["some-1", "some-2", "some-3"]
        assert [one["exit"] for one in records] == [125 if one == number else 0 for one in (1, 2, 3)]
        assert records[number - 1]["pid"] is None
        assert records[number - 1]["error"]["tried"] == "snapshot the upper tree"
    else:
        assert sorted(said.stdout.splitlines()) == [f"some-{one} | {one}" for one in others]
        assert said.stderr.startswith(f"waypoint: some-{number}: cannot snapshot the upper tree")
    assert sorted(live(home)) == sorted(["origin", *(f"some-{one}" for one in others)])
    assert f"some-{number}" not in branches(home)


def hinder_the_fork_that_waits(home: Home) -> int:
    """Make a tree in place of the files of the one fork that has none yet. Return the number of the fork."""
    pool = Path(f"/proc/{Client(home.path).status().pid}/root{home.path}/pool")
    waiting: list[LiveRow] = []

    def is_found() -> bool:
        with contextlib.closing(Names(home.path / "names.db")) as names:
            waiting[:] = [row for row in names.live(ready=False) if not (pool / row.tree).exists()]
        return len(waiting) == 1

    wait_until(is_found, "all forks but one have files")
    btrfs.create_subvolume(str(pool / waiting[0].tree))
    return int(waiting[0].branch.removeprefix("some-"))


def test_an_interrupt_while_forks_start_leaves_none(home: Home, pauses: Pauses) -> None:
    with (
        pauses.armed(Step.RESERVED) as armed,
        home.background("fork", "ready", "-n", "3", "--prefix", "left", "--", "sleep 1000") as command,
    ):
        assert armed.wait() == Step.RESERVED
        command.send_signal(signal.SIGINT)
        assert command.stderr is not None
        assert b"are being ended" in command.stderr.readline()
        armed.go_on()
        assert command.wait(PATIENCE_S) == 130
    assert live(home) == ["origin"]
    assert not [name for name in branches(home) if name.startswith("left")]


def start_daemon(home: Home, soft: int, hard: int) -> None:
    """Replace the daemon of the home by one that begins with these limits of open files."""
    home.must("daemon", "stop")
    limited = ["prlimit", f"--nofile={soft}:{hard}", "--", *home.argv("ps")]
    subprocess.run(limited, env=home.env, check=True, capture_output=True)


def test_a_daemon_that_begins_with_few_descriptors_serves_many_sessions(home: Home) -> None:
    start_daemon(home, 128, 4096)
    forks = home.must("fork", "ready", "-n", str(COUNT), "--prefix", "few", "--", "echo {i}").stdout
    assert sorted(line.rpartition("| ")[2] for line in forks.splitlines()) == sorted(map(str, range(1, COUNT + 1)))


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


@pytest.mark.soak(part="matrix")
def test_memory_of_forks_is_merged_only_if_config_json_asks_for_it() -> None:
    with open_home("merging") as home:
        config, found = home.path / "config.json", []
        for wanted in (False, True):
            home.must("daemon", "stop")
            config.write_text(json.dumps({**json.loads(config.read_text()), "merge_memory": wanted}))
            begin(home, f"origin-{wanted}")
            home.must("fork", f"origin-{wanted}", f"fork-{wanted}")
            found += [
                home.must("exec", "-b", f"{name}-{wanted}", "--", IS_MERGED).stdout for name in ("origin", "fork")
            ]
    can = "1\n" if can_merge() else "0\n"
    assert found == ["0\n", "0\n", can, can]


def can_merge() -> bool:
    """Whether programs of this kernel inherit merging."""
    merge = "import ctypes, os, sys; ctypes.CDLL(None).prctl(67, 1, 0, 0, 0); os.execvp('python3', sys.argv[1:])"
    asked = [sys.executable, "-c", merge, "python3", "-c", ASK_KERNEL]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout == "1\n"
