"""A day of an agent: packages, then turns of edit, test run and checkpoint, with restores of files and forks.

At the end, after the daemon's own work in the background, what the home takes of the disk is bounded by what the
session has written; and no command was silent for a second. WAYPOINT_TEST_TURNS and WAYPOINT_TEST_PACKAGES_MIB change
its size.
"""

import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.homes import Home, open_home
from tests.places import make_temp_root
from tests.terminals import open_pair
from tests.waiting import wait_until
from waypoint.service.undo_space import MOST_HOT_BYTES

pytestmark = [
    pytest.mark.soak(part="agents-day"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2"),
]

TURNS = int(os.environ.get("WAYPOINT_TEST_TURNS", "500"))
PACKAGES_MIB = int(os.environ.get("WAYPOINT_TEST_PACKAGES_MIB", "2048"))
KEEP_EACH, RESTORES, FORKS = 25, 40, 40  # the last two: in 500 turns
SILENT_S, SLACK_S = 1.0, 0.25  # the latter: of a busy machine
MOST_OUTSIDE, MOST_STORED = 1.5, 0.75
"""Times what the session has written: captures outside of the store, without what only undo needs; and the store."""
MOST_FOR_UNDO = MOST_HOT_BYTES + (128 << 20)
WORK = "/srv/work.py"


@dataclass
class Day:
    """What the agent has seen. `silences`: by command, the seconds during which it printed nothing, if too many."""

    home: Home
    silences: list[tuple[str, float]] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)

    def run(self, *words: str) -> str:
        """Run `waypoint WORDS` on a terminal of its own; return all output."""
        master, slave = open_pair()
        with ExitStack() as closing:
            closing.callback(os.close, master)
            began = last = time.monotonic()
            command = subprocess.Popen(
                self.home.argv(*words),
                env=self.home.env,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
            )
            os.close(slave)
            closing.callback(command.kill)
            output, silence = b"", 0.0
            while True:
                select.select([master], [], [], 60)
                now = time.monotonic()
                silence, last = max(silence, now - last), now
                try:
                    output += os.read(master, 1 << 16)
                except OSError:  # EIO: the last program has closed the terminal; EAGAIN: silent for a minute
                    break
            code = command.wait(60)
        text = output.decode(errors="replace")
        assert code == 0, f"waypoint {' '.join(words)} exited with {code}: {text}"
        self.times.setdefault(words[0], []).append(last - began)
        if silence > SILENT_S + SLACK_S:
            self.silences.append((" ".join(words), round(silence, 2)))
        return text

    def work(self, branch: str, *words: object) -> str:
        return self.run("exec", "-b", branch, "--", "python3", WORK, *map(str, words))


@pytest.fixture
def day() -> Iterator[Day]:
    with open_home("day", make_temp_root()) as home:
        yield Day(home)


@pytest.mark.timeout(4 * 3600)
def test_a_day_of_an_agent_takes_the_disk_of_its_changes_and_no_command_is_silent(day: Day) -> None:
    day.run("shell", "main", "-d")
    day.run("cp", str(Path(__file__).parent / "agents_work.py"), f"main:{WORK}")
    day.work("main", "install", PACKAGES_MIB)
    day.run("exec", "--", f"python3 {WORK} serve & disown; until [ -s /srv/app.pid ]; do sleep 0.1; done")
    day.run("checkpoint", "kept-0")
    base = sizes(day.home, "main")[0] + sizes(day.home, "kept-0")[1]
    changed = sum(one_turn(day, number) for number in range(1, TURNS + 1))

    day.run("stop", "--files", "main")
    settle(day.home)
    found = day.home.must("du", "--json", timeout_s=600).json()
    report(day, found, base, changed)
    assert day.silences == []
    assert found["unique_bytes"] - for_undo(found) <= MOST_OUTSIDE * (base + changed)
    assert found["stored_bytes"] <= MOST_STORED * (base + changed)


def one_turn(day: Day, number: int) -> int:
    """Returns how many bytes the agent has changed."""
    changed = int(day.work("main", "turn", number).split()[-1])
    day.run("checkpoint", "turn", "--force")
    kept = f"kept-{number // KEEP_EACH}"
    if number % KEEP_EACH == 0:
        day.run("checkpoint", kept)
    if number * RESTORES // 500 > (number - 1) * RESTORES // 500:
        day.run("restore", kept, "--only", "files")
    if number * FORKS // 500 > (number - 1) * FORKS // 500:
        branch = f"try-{number}"
        day.run("fork", "turn", branch)
        changed += int(day.work(branch, "turn", number).split()[-1])
        day.run("stop", branch, "--discard", "--yes")
    if number % 100 == 0:
        for words in (("du",), ("ps",), ("log",), ("op", "log")):
            day.run(*words)
    return changed


def settle(home: Home) -> None:
    """Wait until all captures are stored, and those that only undo needs keep to their budget."""

    def is_done() -> bool:
        kept = [home.must("show", name, "--json").json()["durable"] for name in ("turn", "main")]
        found = home.must("du", "--json", timeout_s=600).json()
        return all(kept) and found["storing"] is None and for_undo(found) <= MOST_FOR_UNDO

    wait_until(is_done, "all captures are stored, and old copies are evicted", 600)


def sizes(home: Home, name: str) -> tuple[int, int]:
    """Bytes of files and of processes."""
    (found,) = home.must("du", name, "--json", timeout_s=600).json()["holders"]
    return found["files_bytes"], found["processes_bytes"]


def for_undo(found: dict[str, Any]) -> int:
    """What captures that only undo needs take outside of the store."""
    return sum(held["copies_bytes"] for held in found["held"] if held["by"] == "undo")


def report(day: Day, found: dict[str, Any], base: int, changed: int) -> None:
    used = found["home_bytes"] - found["overhead_bytes"]
    print(f"base {base >> 20} MiB, changed {changed >> 20} MiB, used {used >> 20} MiB: {used / (base + changed):.2f}")
    print(day.home.must("du", timeout_s=600).stdout[-1000:])
    for verb, times in day.times.items():
        print(f"{verb}: {len(times)} times, median {sorted(times)[len(times) // 2]:.2f} s, most {max(times):.2f} s")
    for words, silence in day.silences:
        print(f"silent for {silence} s: {words}")
