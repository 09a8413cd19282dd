"""Real programs are captured while they work, forked and restored in place. Each program is a row (rows.py).

A few rows are in the gate. The soak suite has those that need no additional package, or all rows if
WAYPOINT_TEST_WORKLOADS=all.

"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import MIB, Home, open_home
from tests.places import ROOT
from tests.workloads.driving import Outcome, assert_expected, drive
from tests.workloads.machine import MACHINE, install
from tests.workloads.rows import WORKLOADS
from tests.workloads.workload import PATH, Workload
from waypoint.client import Client
from waypoint.client.program_trial import COLS, ROWS, ProgramFailed
from waypoint.client.results import StartOptions

ALL = os.environ.get("WAYPOINT_TEST_WORKLOADS") == "all"
CHOSEN = [row for row in WORKLOADS if ALL or row.is_quick]
POOL = {"initial_bytes": 512 * MIB, "step_bytes": 1024 * MIB, "headroom_bytes": 512 * MIB, "floor_bytes": 256 * MIB}
"""Large enough for one session with all packages."""
HEAD = "| workload | tier | pause, ms | restore, ms | degraded |\n|---|---|---|---|---|\n"
in_sessions = [pytest.mark.privileged, pytest.mark.requires("root", "criu", *(["network"] if ALL else []))]
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with open_home("matrix", pool=POOL) as made:
        if ALL:
            install(Client(made.path), WORKLOADS)
        yield made


@pytest.fixture(scope="module")
def outcomes() -> Iterator[list[Outcome]]:
    """The results of the tests, which are written as a table to WAYPOINT_TEST_WORKLOADS_FILE at the end."""
    found: list[Outcome] = []
    yield found
    file = os.environ.get("WAYPOINT_TEST_WORKLOADS_FILE")
    if file:
        lines = [
            f"| {one.name} | {one.tier} | {one.paused_ms:.0f} | {one.restore_ms:.0f} | {'; '.join(one.degraded)} |\n"
            for one in found
        ]
        Path(file).write_text(HEAD + "".join(lines))


@pytest.fixture
def branch() -> str:
    return f"w{next(_NUMBERS)}"


def driven(home: Home, branch: str, row: Workload) -> Outcome:
    """Drive the workload in a new session. The session and its forks are discarded afterwards."""
    client = Client(home.path)
    options: StartOptions = {"user": "root", "cwd": "/", "shell": "/bin/bash", "rows": ROWS, "cols": COLS}
    options["env"] = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
    options["allow"] = list(row.allow)
    if ALL:
        options["from_name"] = MACHINE
    try:
        return drive(client, row, client.start(branch, **options), PATH if ALL else "")
    finally:
        for one in (branch, f"{branch}-1", f"{branch}-2"):
            home.cli("stop", one, "--discard")


IN_THE_GATE = {
    "python",
    "tmux",
    "pipeline over a FIFO",
    "git rebase, its list in an editor",
    "TCP connection with unread data",
}


def marks_of(row: Workload) -> list[pytest.MarkDecorator]:
    soak = [] if row.name in IN_THE_GATE else [pytest.mark.soak(part="workloads")]
    return [*in_sessions, pytest.mark.requires(*row.needs), *soak]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name, marks=marks_of(row)) for row in CHOSEN])
def test_a_workload_continues_in_every_copy(home: Home, branch: str, row: Workload, outcomes: list[Outcome]) -> None:
    outcomes.append(driven(home, branch, row))


_HERE = "told-$WAYPOINT_BRANCH"
BROKEN = {
    "copies have forgotten": (
        Workload(name="", patience_s=1, tell=f"echo $1 >>{_HERE}", told=f"cat {_HERE}"),
        "in place of one",
    ),
    "no work is done": (Workload(name="", patience_s=1, work="echo 5"), "it stays at 5"),
    "work begins again": (
        Workload(name="", start=f"seq 5 >{_HERE}", work=f"echo x >>{_HERE}; wc -l <{_HERE}"),
        "it is at 1 and was at 6",
    ),
    "the tier is another": (Workload(name="", patience_s=1, start="sleep 1000 &", tier="respawn"), "the tier is live"),
    "degraded is not in the row": (
        Workload(name="", patience_s=1, start="bash -c 'exec 3<>/dev/tty; sleep 1000' &", tier="respawn"),
        "degraded: .*/dev/tty",
    ),
}
"""Faulty rows that the checks must find, each with the expected message."""


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[*in_sessions, pytest.mark.soak(part="workloads")]) for what in BROKEN]
)
def test_the_checks_find_a_loss(home: Home, branch: str, what: str) -> None:
    row, said = BROKEN[what]
    with pytest.raises((AssertionError, ProgramFailed), match=said):
        driven(home, branch, row)


def test_raw_messages_of_criu_always_fail() -> None:
    row = Workload(name="", degraded=("",))
    assert_expected(row, ["udp 7031: datagrams that no program has read yet are not in copies"])
    with pytest.raises(AssertionError, match="degraded"):
        assert_expected(row, ["fsnotify: Can't dump that handle"])


def test_the_docs_have_a_line_for_each_workload() -> None:
    lines = (ROOT / "docs/workloads.md").read_text().splitlines()
    assert [row.name for row in WORKLOADS if not [line for line in lines if line.startswith(f"| {row.name} |")]] == []
    assert [row.name for row in WORKLOADS if row.tier != "live" and not row.because] == []
