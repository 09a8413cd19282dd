"""Random operations on sessions, most of them under a random accident at a random moment (accidents.py).

The test checks after each operation: an operation that reported success was carried out, one that reported failure was
carried out or not. The witness program of every session has the same count in memory, in a file, over an open TCP
connection and on the terminal as the shell in a variable. The records of Waypoint agree with what exists. After a
reboot no session is live, and every checkpoint can be restored with its processes, or is reported to have lost them:
those of the last seconds.

Variables: WAYPOINT_TEST_CHAOS_S, the duration in seconds; WAYPOINT_TEST_SEED, the seed of a run to repeat;
WAYPOINT_TEST_CHAOS_TRACE, a file that gets a line for each operation.
"""

import os
import random
import time
from collections.abc import Iterator

import pytest

from tests.chaos.accidents import Rebooted
from tests.chaos.moving import ADD, Moving, listed, look, to_undo
from tests.corner import corner as corner
from tests.homes import Home
from tests.session import ledger
from tests.session.full_disks import Disk
from tests.session.full_disks import small_disk as small_disk

pytestmark = [pytest.mark.soak(part="chaos"), pytest.mark.privileged, pytest.mark.requires("criu", "btrfs")]

SECONDS = float(os.environ.get("WAYPOINT_TEST_CHAOS_S", "40"))
SEED = int(os.environ.get("WAYPOINT_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
DISK_BYTES = 16 << 30  # the size of the disk's file, which is sparse
MOST_BRANCHES, MOST_NAMES = 4, 6


class Chaos(Moving):
    def step(self) -> None:
        """Carry out one random operation, and check the state after it."""
        self.number += 1
        self.touched.clear()
        often = [self.add, self.checkpoint, self.restore, self.undo]
        seldom = [self.fork, self.end, self.park, self.stop, self.restore_files, self.remove, self.gc]
        act = self.choose.choices([*often, *seldom], weights=[4, 3, 3, 3, *[1] * len(seldom)])[0]
        branch = self.choose.choice(list(self.live))
        before, (last,) = dict(self.live), self.client.history.operations(limit=1)
        try:
            act(branch)
        except Rebooted:
            self.recover(branch)
        self.note_replaced(last.number, before)
        ledger.check(self.home)
        assert self.branches == self.live.keys()
        for branch, count in list(self.live.items()):
            assert set(look(self.client, branch).values()) == {count}, f"{branch} should have {count}"

    def add(self, branch: str) -> None:
        code = self.accidents.run("add", branch, "exec", "-b", branch, "--", ADD)
        self.settle(branch, code, self.live[branch] + 1)

    def checkpoint(self, branch: str) -> None:
        name = f"k{self.number}"
        code = self.accidents.run("checkpoint", branch, "checkpoint", name, "-b", branch, "--tier", "live")
        is_there = self.remember(name, branch)
        assert is_there or code != 0, f"{name} was acknowledged and is not there"
        while len(self.kept) > MOST_NAMES:
            self.forget(next(iter(self.kept)))

    def park(self, branch: str) -> None:
        """Park the session, then restore it."""
        name, count = f"k{self.number}", self.live[branch]
        code = self.accidents.run("park", branch, "checkpoint", name, "-b", branch, "--park")
        is_there, is_live = self.remember(name, branch), branch in self.branches
        assert is_there != is_live, f"after a park with exit {code} there is {name}, and the session: {is_there}"
        assert is_there or code != 0, f"{name} was acknowledged and is not there"
        if is_live:
            return
        code = self.accidents.run("unpark", branch, "restore", name, "-b", branch)
        if branch not in self.branches:
            assert code != 0, f"the restore of {branch} was acknowledged and it is not live"
            self.home.must("restore", name, "-b", branch)
        self.settle(branch, 0, count)

    def restore(self, branch: str) -> None:
        name = self.any_kept()
        code = self.accidents.run("restore", branch, "restore", name, "-b", branch)
        self.settle(branch, code, self.kept[name])

    def restore_files(self, branch: str) -> None:
        name = self.any_kept()
        exchange_files(self, "restore files", branch, self.kept[name], "restore", name, "-b", branch, "--only", "files")

    def fork(self, branch: str) -> None:
        if len(self.live) == MOST_BRANCHES:
            return self.end(branch)
        name, new = self.any_kept(), f"b{self.number}"
        code = self.accidents.run("fork", new, "fork", name, new)
        is_there = new in self.branches
        assert is_there or code != 0, f"{new} was acknowledged and is not there"
        if is_there:
            self.live[new] = self.kept[name]
        return None

    def undo(self, branch: str) -> None:
        """Undo the last operation of the branch: its start, a checkpoint, or the replacement of its session."""
        planned = to_undo(self, branch)
        if planned is None:
            return self.add(branch)
        (entry,) = (one for one in self.client.history.operations() if one.number == planned.number)
        was_live, _ = entry.sessions.get(branch, (True, True))
        if not was_live:
            return self.end(branch, "undo", "-b", branch)
        if "its files only" in (entry.undo or ""):
            return exchange_files(self, "undo", branch, self.former[planned.number, branch], "undo", "-b", branch)
        names = entry.moves.keys() & self.kept.keys()
        if len(names) == len(self.kept):  # keep a checkpoint, to restore after a reboot
            return self.add(branch)
        taken = {name: self.kept.pop(name) for name in names}
        code = self.accidents.run("undo", branch, "undo", "-b", branch)
        for name, count in taken.items():
            is_there = self.remember(name, branch, count)
            assert code != 0 or not is_there, f"{name} was undone and exists"
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

    def stop(self, branch: str) -> None:
        """End the session, and check that files and shell variables are kept."""
        code = self.accidents.run("stop", branch, "stop", branch)
        if branch in self.branches:
            assert code != 0, f"the end of {branch} was acknowledged and it lives"
            return
        self.home.must("shell", "-d", branch, "--user", "nobody")
        said = self.client.session(branch).exec("echo $(cat /tmp/count) $steps").output.decode()
        assert said == "{0} {0}\n".format(self.live[branch]), f"{branch} should have {self.live[branch]}: {said}"
        self.discard(branch)

    def remove(self, branch: str) -> None:
        if len(self.kept) == 1:
            return self.add(branch)
        name = self.any_kept()
        code = self.accidents.run("rm", branch, "rm", name)
        if not self.is_there(name):
            del self.kept[name]
        else:
            assert code != 0, f"the removal of {name} was acknowledged and it is there"
        return None

    def gc(self, branch: str) -> None:
        self.accidents.run("gc", branch, "gc", "--keep-operations", "0s")


def exchange_files(moving: Moving, kind: str, branch: str, count: int, *argv: str) -> None:
    """Run a command that replaces only the session's files, in which the count becomes `count`. Then count one more,
    which makes all counts equal again.
    """
    code, now = moving.accidents.run(kind, branch, *argv), moving.live[branch]
    seen = look(moving.client, branch)
    assert seen["file"] in ({count} if code == 0 else {count, now}), f"{seen}, exit {code}: it was to be {count}"
    assert {**seen, "file": now} == dict.fromkeys(seen, now), f"more than the files was changed: {seen}"
    moving.home.must("exec", "-b", branch, "--", ADD)
    moving.live[branch] += 1


@pytest.fixture
def chaos(small_disk: Home) -> Iterator[Chaos]:
    chaos = Chaos(small_disk, random.Random(SEED))
    chaos.begin()
    yield chaos
    told = chaos.accidents
    print(f"seed {SEED}, {told.done.total()} operations: {listed(told.done)}; {told.happened.total()} accidents:")
    print(f"{listed(told.happened)}; away: {told.away_s:.2f} s")


@pytest.mark.parametrize("small_disk", [Disk(DISK_BYTES)], indirect=True, ids=["on-a-disk-of-its-own"])
@pytest.mark.timeout(SECONDS + 200)
def test_acknowledged_results_survive_random_accidents(chaos: Chaos) -> None:
    print(f"seed {SEED}")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        chaos.step()
    assert chaos.accidents.happened.total() > 0
