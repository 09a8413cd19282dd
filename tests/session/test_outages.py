"""Each process of Waypoint, and each pair of them, is killed while a session is frozen for a checkpoint. The tests
measure how long the daemon does not answer or the session does not run.

WAYPOINT_TEST_OUTAGES: times between the two kills of a pair, in milliseconds; each ordered pair is killed with each.
The default hits the daemon that replaces a killed one while it starts.
WAYPOINT_TEST_OUTAGES_FILE: a file to which the measured times are written.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import victims
from tests.homes import Home
from tests.processes_now import runs
from tests.session import ledger, outage
from tests.session.pauses import Pauses
from tests.waiting import wait_until
from waypoint.capture.steps import Step
from waypoint.client import Client, Session
from waypoint.daemon.siblings import FIRST_DELAY_S, QUICK_DEATH_S
from waypoint.linux.tasks import procfs
from waypoint.session.adopt import IDLE_S

pytestmark = [
    pytest.mark.soak(part="outages"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2"),
]

BUDGET_S = 0.5
ASYNCIO_S = 0.1
"""A Python that imports asyncio starts and ends in this time, unless other work keeps the processors busy."""
DEADLINE_S = 10.0  # the longest wait for something that hangs; BUDGET_S is the tested limit
DISTANCES = [int(word) for word in os.environ.get("WAYPOINT_TEST_OUTAGES", "60").split()]
YOUNG_MS = (60, 250)
"""Ages of a daemon: at the first it opens its home; at the second it serves, but still counts as having died early."""


def cases() -> list[tuple[tuple[str, ...], int]]:
    single: list[tuple[tuple[str, ...], int]] = [((part,), 0) for part in victims.PARTS]
    pairs = list(itertools.product(victims.PARTS, repeat=2))
    return single + [(pair, distance) for pair in pairs for distance in DISTANCES]


@pytest.fixture(scope="module")
def home(pauses: Pauses) -> Iterator[Home]:
    with pauses.open_home("outage") as made:
        yield made


@pytest.fixture(scope="module")
def session(home: Home) -> Session:
    live = Client(home.path).start("main")
    live.run("sh", "-c", "cat > /srv/counter", stdin=outage.COUNTER.encode())
    live.exec("kept=yes; python3 /srv/counter &")
    wait_until(lambda: live.run("cat", outage.COUNT).stdout != b"", "the program counts")
    return live


@contextlib.contextmanager
def frozen_for_checkpoint(home: Home, pauses: Pauses) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the command of a checkpoint that stops while its session is frozen, and continues after the block."""
    argv = home.argv("checkpoint", "still", "--force", "--tier", "live")
    with (
        pauses.armed(Step.DUMPED) as armed,
        subprocess.Popen(argv, env=home.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as command,
    ):
        assert armed.wait() == Step.DUMPED
        yield command
        with contextlib.suppress(OSError):  # the daemon is dead
            armed.go_on()
        command.communicate(timeout=DEADLINE_S)


def rest(home: Home) -> None:
    """Wait until the daemon and the supervisor are so old that their deaths do not count as early: after two early
    deaths in a row, Waypoint waits before the next start (waypoint/daemon/siblings.py).
    """
    started = [procfs.stat(pid).start_ticks for part in ("daemon", "supervisor") for pid in victims.pids(home, part)]
    ticks_s = os.sysconf("SC_CLK_TCK")
    youngest_s = time.clock_gettime(time.CLOCK_BOOTTIME) - (max(started) + 1) / ticks_s  # the kernel rounds down
    time.sleep(max(0.0, QUICK_DEATH_S - youngest_s))


def kill(home: Home, pauses: Pauses, parts: tuple[str, ...], distance_ms: int) -> tuple[float, float]:
    """Kill the parts while a session is frozen, `distance_ms` after each other; if a part was replaced meanwhile, kill
    the new process. Return the times of the first and the last kill.
    """
    moments: list[float] = []
    with frozen_for_checkpoint(home, pauses) as command:
        found = {
            part: victims.pids(home, part) for part in parts if part != "client"
        }  # before the first kill, since the search takes some time
        found["client"] = [command.pid]
        for part in parts:
            time.sleep(distance_ms / 1000 if moments else 0)
            for pid in list(filter(runs, found[part])) or (victims.pids(home, part) if part != "client" else []):
                victims.end(pid)
            moments.append(time.monotonic())
    return moments[0], moments[-1]


def budget_s() -> float:
    """Return BUDGET_S, multiplied by the slowness of the machine: how much longer than ASYNCIO_S a Python takes now."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-I", "-S", "-c", "import asyncio"], check=True)
    return BUDGET_S * max(1.0, (time.monotonic() - begin) / ASYNCIO_S)


def note(parts: tuple[str, ...], distance_ms: int, away_s: float) -> None:
    """Append a measured time to the file of WAYPOINT_TEST_OUTAGES_FILE."""
    if path := os.environ.get("WAYPOINT_TEST_OUTAGES_FILE"):
        with open(path, "a") as file:
            file.write(f"{'+'.join(parts)} {distance_ms} {1000 * away_s:.0f}\n")


def check(home: Home, session: Session, pid: int) -> None:
    """Check that one process of each part runs, the session is unharmed, and nothing is left over."""

    def all_run() -> bool:
        return [len(victims.pids(home, part)) for part in ("supervisor", "daemon", "launcher")] == [1, 1, 1]

    assert session.refresh().pid == pid
    assert session.run("true").exit == 0
    assert session.exec("echo $kept; jobs -r | wc -l").output == b"yes\n1\n"
    ledger.check(home)
    wait_until(all_run, "one process of each part runs", budget_s())
    mounted = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    assert {one for one in mounted if one.startswith(str(home.path))} <= {f"{home.path}/hot/.memory"}


@pytest.mark.parametrize(("parts", "distance_ms"), cases())
def test_killed_processes_of_waypoint_are_replaced_quickly(
    home: Home, pauses: Pauses, session: Session, parts: tuple[str, ...], distance_ms: int
) -> None:
    facts = session.refresh()
    assert facts.id is not None
    assert facts.pid is not None
    budget = budget_s()
    with outage.Probe(home, facts.id, facts.pid) as probe:
        rest(home)
        first, last = kill(home, pauses, parts, distance_ms)
        wait_until(lambda: probe.is_back(last), "all is back", DEADLINE_S)
        check(home, session, facts.pid)
    away_s = probe.away_s(first, last)
    note(parts, distance_ms, away_s)
    assert away_s <= max(budget, budget_s())


@pytest.mark.parametrize("age_ms", YOUNG_MS)
def test_young_daemons_killed_in_a_row_are_replaced(home: Home, session: Session, age_ms: int) -> None:
    """Waypoint replaces the first two at once, and the third after FIRST_DELAY_S."""
    facts = session.refresh()
    assert facts.id is not None
    assert facts.pid is not None
    budget = budget_s() + FIRST_DELAY_S
    with outage.Probe(home, facts.id, facts.pid) as probe:
        rest(home)
        moments = []
        for _ in range(3):
            wait_until(lambda: bool(victims.pids(home, "daemon")), "there is a daemon", DEADLINE_S)
            for pid in victims.pids(home, "daemon"):
                victims.end(pid)
            moments.append(time.monotonic())
            time.sleep(age_ms / 1000)
        wait_until(lambda: probe.is_back(moments[-1]), "all is back", DEADLINE_S)
        check(home, session, facts.pid)
    away_s = probe.away_s(moments[0], moments[-1])
    note(("daemon",) * 3, age_ms, away_s)
    assert away_s <= max(budget, budget_s() + FIRST_DELAY_S)


def test_a_criu_that_hangs_is_killed_by_the_next_daemon(home: Home, pauses: Pauses, session: Session) -> None:
    facts = session.refresh()
    assert facts.id is not None
    assert facts.pid is not None
    rest(home)
    budget = budget_s()
    with outage.Probe(home, facts.id, facts.pid) as probe:
        with frozen_for_checkpoint(home, pauses):
            (criu,) = ledger.dumping_pids(home)
            os.kill(criu, signal.SIGSTOP)
            victims.end(Client(home.path).status().pid)
            killed = time.monotonic()
        wait_until(lambda: probe.is_back(killed), "all is back", DEADLINE_S)
        check(home, session, facts.pid)
    assert probe.away_s(killed, killed) <= IDLE_S + max(budget, budget_s())


def test_a_frozen_session_without_a_daemon_is_thawed_for_the_next_client(
    home: Home, pauses: Pauses, session: Session
) -> None:
    facts = session.refresh()
    assert facts.id is not None
    assert facts.pid is not None
    with frozen_for_checkpoint(home, pauses) as command:
        found = [command.pid, *victims.pids(home, "supervisor"), *victims.pids(home, "daemon")]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that no process can start another
            for pid in found:
                os.kill(pid, number)
        wait_until(lambda: not any(map(runs, found)), "the processes have ended")
    group = ledger.group_of(home) / facts.id
    assert "frozen 1" in (group / "cgroup.events").read_text()
    assert session.run("true").exit == 0
    assert "frozen 0" in (group / "cgroup.events").read_text()
    check(home, session, facts.pid)


def test_a_killed_launcher_is_replaced_before_it_is_needed(home: Home, session: Session) -> None:
    session.run("true")
    time.sleep(QUICK_DEATH_S)  # a younger launcher is replaced only at the next request
    (first,) = victims.pids(home, "launcher")
    victims.end(first)
    wait_until(lambda: victims.pids(home, "launcher") not in ([], [first]), "the next launcher runs", budget_s())
