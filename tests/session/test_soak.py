"""After long work, the memory of a daemon stops growing, and the daemon has no more files open than before.

WAYPOINT_TEST_SOAK: the number of sessions that are forked and discarded. The first hundreds make the memory grow (by
the allocator, and by pages of the launcher that forks have copied); with 2000, this is over early.
WAYPOINT_TEST_SOAK_KIB: the allowed growth of the memory in the second half.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.victims import pids
from tests.homes import Home, open_home
from tests.session import ledger
from tests.waiting import wait_until
from waypoint.client import Client
from waypoint.daemon.lifetime import WORKERS

pytestmark = [
    pytest.mark.soak(part="load"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2"),
]

CYCLES = int(os.environ.get("WAYPOINT_TEST_SOAK", "120"))
WARM_UP = 30
SAMPLES = 4
PARTS = ("daemon", "launcher", "supervisor")
# The allowed growth of the private memory of all parts. A new worker thread needs a stack, a part of the heap and a
# connection to names.db with cached pages. The operation log in names.db grows with each cycle.
MOST_KIB, MOST_KIB_PER_CYCLE = 6144, 0.5
PLATEAU_KIB = int(os.environ.get("WAYPOINT_TEST_SOAK_KIB", "2048"))
STABLE_S = 1.5
OTHER_THREADS = (
    2  # besides the workers, whose number depends on the load: the threads of the event loop and of the pool
)


@pytest.fixture
def home() -> Iterator[Home]:
    with open_home("soak") as home:
        client = Client(home.path)
        client.start("main").exec("kept=yes; sleep 1000 &")
        client.session("main").checkpoint("origin", tier="live")
        yield home


@pytest.mark.timeout(60 + CYCLES)
def test_forked_and_discarded_sessions_leave_nothing_in_the_daemon(home: Home) -> None:
    cycle(home, WARM_UP)
    before, memory = settled(home), [memory_kib(home)]
    for _ in range(SAMPLES):
        cycle(home, CYCLES // SAMPLES)
        memory.append(memory_kib(home))
    after = settled(home)
    print(f"KiB of private memory after each {CYCLES // SAMPLES} cycles: {memory}")
    assert after == before, f"more: {after - before}, less: {before - after}"
    assert memory[-1] - memory[0] <= MOST_KIB + MOST_KIB_PER_CYCLE * CYCLES
    assert memory[-1] - memory[SAMPLES // 2] <= PLATEAU_KIB


def cycle(home: Home, times: int) -> None:
    client = Client(home.path)
    for _ in range(times):
        (fork,) = client.fork("origin", "copy")
        assert fork.exec("echo $kept").output == b"yes\n"
        fork.stop(discard=True)


def settled(home: Home) -> Counter[str]:
    """Return `held` when it has not changed for STABLE_S: some connections are closed shortly after the answer."""
    last, since = held(home), time.monotonic()

    def is_stable() -> bool:
        nonlocal last, since
        now = held(home)
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > STABLE_S

    wait_until(is_stable, "nothing changes any more")
    assert last.pop("daemon: thread") <= WORKERS + OTHER_THREADS
    return last


def memory_kib(home: Home) -> int:
    """Return the private memory of daemon, launcher and supervisor."""
    total = 0
    for part in PARTS:
        for line in Path(f"/proc/{_pid(home, part)}/smaps_rollup").read_text().splitlines():
            total += int(line.split()[1]) if line.startswith("Private_") else 0
    return total


def held(home: Home) -> Counter[str]:
    """Count, by kind, the open files and threads of the parts, and the home's mounts, cgroups and files."""
    count: Counter[str] = Counter()
    for part in PARTS:
        count.update(f"{part}: {kind}" for kind in _open(_pid(home, part)))
    view = Path(f"/proc/{_pid(home, 'daemon')}")
    count["mounts of the daemon"] = len((view / "mountinfo").read_text().splitlines())
    count.update(f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if home.id in line)
    folders = {"group": ledger.group_of(home), "runtime": home.runtime, "hot": home.path / "hot"}
    folders |= {"tree": view / f"root{home.path}/pool"}
    for kind, folder in folders.items():
        depth = "*" if kind == "tree" else "**/*"
        count[kind] = sum(1 for _ in folder.glob(depth))
    count["file of the home"] = sum(path.name != "pool" for path in home.path.iterdir())
    return count


def _open(pid: int) -> Iterator[str]:
    process = Path(f"/proc/{pid}")
    yield from ("thread" for _ in (process / "task").iterdir())
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(descriptor.readlink()).partition(":")[0]
            info = (process / "fdinfo" / descriptor.name).read_text()
            yield from ("inotify watch" for line in info.splitlines() if line.startswith("inotify"))


def _pid(home: Home, part: str) -> int:
    (pid,) = pids(home, part)
    return pid
