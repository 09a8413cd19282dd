"""Random operations on sessions, most of them under a random accident at a random moment (accidents.py).

After each operation: an operation that says it is done is done, one that says it failed is done or not done; every
session's witness, in memory, in a file, at a port, over an open TCP connection and on the terminal, agrees with the
shell's variable; and what is on record is what is there. After a reboot no session is live, and every checkpoint can be
brought back with its processes. WAYPOINT_TEST_CHAOS_S: for how many seconds, WAYPOINT_TEST_CHAOS_SEED: the seed of a
run that is to be repeated, WAYPOINT_TEST_CHAOS_TRACE: a file that gets a line for each operation.
"""

import json
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import witness
from tests.chaos.accidents import Accidents, Rebooted
from tests.corner import corner as corner
from tests.homes import Home
from tests.session import ledger
from tests.session.full_disks import Disk
from tests.session.full_disks import small_disk as small_disk
from tests.waiting import wait_until
from waypoint.client.sdk import Client
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.facts import UndoneFacts

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "btrfs")]

SECONDS = float(os.environ.get("WAYPOINT_TEST_CHAOS_S", "40"))
SEED = int(os.environ.get("WAYPOINT_TEST_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
DISK_BYTES = 16 << 30  # of a sparse file: only what is used takes room
MOST_BRANCHES, MOST_NAMES = 4, 6
ADD = 'ask add; steps=$((steps + 1)); echo "tally $steps"'


class Chaos:
    """`live`: the branches with a session, `kept`: the checkpoints, each with its count. `former`: by the number of an
    operation that has replaced a session, and the branch, its count.
    """

    def __init__(self, home: Home, choose: random.Random) -> None:
        self.home, self.choose = home, choose
        self.client = Client(home.path)
        self.accidents = Accidents(home, choose)
        self.live: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.former: dict[tuple[int, str], int] = {}
        self.number = 0

    def begin(self) -> None:
        self.home.must("shell", "-d", "main", "--user", "nobody")
        self.home.must("exec", "--", f"{witness.ASK}; steps=0; echo 'tally 0'")
        self.home.must("exec", "--", f"python3 {Path(witness.__file__)} /tmp >/tmp/witness.log 2>&1 &")
        wait_until(lambda: '"memory"' in self.home.must("exec", "--", "ask look 2>&1").stdout, "the witness answers")
        self.live["main"] = 0
        self.home.must("checkpoint", "k0", "--tier", "live")
        self.kept["k0"] = 0

    def step(self) -> None:
        """One operation, and what must be true after it."""
        self.number += 1
        acts = [self.add, self.checkpoint, self.restore, self.fork, self.end, self.undo]
        act = self.choose.choices(acts, weights=[3, 2, 2, 1, 1, 2])[0]
        branch = self.choose.choice(list(self.live))
        before, (last,) = dict(self.live), self.client.history.operations(limit=1)
        try:
            act(branch)
        except Rebooted:
            self.go_on(branch)
        self.note_replaced(last.number, before)
        ledger.check(self.home)
        assert self.branches == self.live.keys()
        for branch, count in self.live.items():
            assert counts_of(self.client, branch) == {count}, f"{branch} should have {count}"

    def go_on(self, branch: str) -> None:
        """After a reboot, which has interrupted an operation on `branch`."""
        rows = self.home.must("ps", "--all", "--json").json()
        assert {row["state"] for row in rows} <= {"lost", "ended"}, f"after a reboot: {rows}"
        lost = {row["branch"] for row in rows if row["state"] == "lost"}
        # Of the operation on `branch` nobody was told whether it is done: an end, or a fork.
        assert self.live.keys() - {branch} <= lost <= self.live.keys() | {f"b{self.number}"}
        self.remember(f"k{self.number}", branch)
        self.live.clear()
        for other in {row["branch"] for row in rows} - {"main"}:
            self.home.must("rm", other)
        name = self.choose.choice(list(self.kept))
        self.home.must("restore", name, "-b", "main")
        self.live["main"] = self.kept[name]

    # --- operations

    def add(self, branch: str) -> None:
        code = self.accidents.run("add", branch, "exec", "-b", branch, "--", ADD)
        self.settle(branch, code, self.live[branch] + 1)

    def checkpoint(self, branch: str) -> None:
        name = f"k{self.number}"
        code = self.accidents.run("checkpoint", branch, "checkpoint", name, "-b", branch, "--tier", "live")
        is_there = self.remember(name, branch)
        assert is_there or code != 0, f"{name} was acknowledged and is not there"
        while len(self.kept) > MOST_NAMES:
            oldest = next(iter(self.kept))
            self.client.history.remove(oldest)
            del self.kept[oldest]

    def restore(self, branch: str) -> None:
        name = self.choose.choice(list(self.kept))
        code = self.accidents.run("restore", branch, "restore", name, "-b", branch)
        self.settle(branch, code, self.kept[name])

    def fork(self, branch: str) -> None:
        if len(self.live) == MOST_BRANCHES:
            return self.end(branch)
        name, new = self.choose.choice(list(self.kept)), f"b{self.number}"
        code = self.accidents.run("fork", new, "fork", name, new)
        is_there = new in self.branches
        assert is_there or code != 0, f"{new} was acknowledged and is not there"
        if is_there:
            self.live[new] = self.kept[name]
        return None

    def undo(self, branch: str) -> None:
        """Take back what was done last on the branch: its start, a checkpoint, or what has replaced its session."""
        planned = to_undo(self, branch)
        if planned is None:
            return self.add(branch)
        (entry,) = (one for one in self.client.history.operations() if one.number == planned.number)
        was_live, _ = entry.sessions.get(branch, (True, True))
        if not was_live:
            return self.end(branch, "undo", "-b", branch)
        names = entry.moves.keys() & self.kept.keys()
        if len(names) == len(self.kept):  # after a reboot, there must be something to go on from
            return self.add(branch)
        taken = {name: self.kept.pop(name) for name in names}
        code = self.accidents.run("undo", branch, "undo", "-b", branch)
        for name, count in taken.items():
            is_there = self.remember(name, branch, count)
            assert code != 0 or not is_there, f"{name} was taken back and is there"
        after = self.former[planned.number, branch] if branch in entry.sessions else self.live[branch]
        return self.settle(branch, code, after)

    def end(self, branch: str, *how: str) -> None:
        if branch == "main":
            return self.add(branch)
        code = self.accidents.run("end", branch, *(how or ("stop", branch, "--discard")))
        if branch not in self.branches:
            del self.live[branch]
        else:
            assert code != 0, f"the end of {branch} was acknowledged and it lives"
        return None

    # --- what is there

    @property
    def branches(self) -> set[str]:
        return {row.branch for row in self.client.sessions()}

    def remember(self, name: str, branch: str, count: int | None = None) -> bool:
        """Whether there is a checkpoint `name`, which was to be made of the session on `branch`. `count`: its count,
        None: that of the session.
        """
        try:
            self.client.history.show(name)
        except UnknownName:
            return False
        self.kept[name] = self.live[branch] if count is None else count
        return True

    def note_replaced(self, last: int, before: dict[str, int]) -> None:
        """Note the operations since the one with the number `last` that have replaced sessions, whose counts were
        `before`.
        """
        for entry in self.client.history.operations():
            if entry.number <= last:
                break
            replaced = [branch for branch, states in entry.sessions.items() if all(states)]
            self.former.update({(entry.number, branch): before[branch] for branch in replaced})

    def settle(self, branch: str, code: int, after: int) -> None:
        """An operation on the session has ended: its count is `after`, or, if it failed, perhaps as it was."""
        counts = counts_of(self.client, branch)
        allowed = [{after}] if code == 0 else [{after}, {self.live[branch]}]
        assert counts in allowed, f"{branch} has {counts}, exit {code}, allowed {allowed}"
        self.live[branch] = counts.pop()


def to_undo(chaos: Chaos, branch: str) -> UndoneFacts | None:
    """What an undo on the branch would take back; None if that is a checkpoint whose name was removed since."""
    said = ""
    try:
        return chaos.client.history.plan_undo(branch=branch)
    except StateConflict as error:
        said = error.said
    oldest = re.match(r"(k\d+) has been moved since", said)
    assert oldest, said
    assert oldest[1] not in chaos.kept, said
    return None


def counts_of(client: Client, branch: str) -> set[int]:
    """What each witness in the session says."""
    session = client.session(branch)
    said, steps = session.exec("ask look; echo $steps").output.splitlines()
    seen = re.findall(rb"tally (\d+)", b"".join(session.logs()))
    return {*json.loads(said).values(), int(steps), int(seen[-1])}


@pytest.fixture
def chaos(small_disk: Home) -> Iterator[Chaos]:
    chaos = Chaos(small_disk, random.Random(SEED))
    chaos.begin()
    yield chaos
    told = chaos.accidents
    print(f"seed {SEED}, operations: {dict(told.done)}, accidents: {dict(told.happened)}, away: {told.away_s:.2f} s")


@pytest.mark.parametrize("small_disk", [Disk(DISK_BYTES)], indirect=True, ids=["on-a-disk-of-its-own"])
@pytest.mark.timeout(SECONDS + 200)
def test_whatever_happens_what_was_acknowledged_is_there(chaos: Chaos) -> None:
    print(f"seed {SEED}")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        chaos.step()
    assert chaos.accidents.happened.total() > 0
