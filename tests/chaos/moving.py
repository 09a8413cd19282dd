"""The expected state of a home after random operations: live sessions and checkpoints, with counts (witness.py)."""

import collections
import json
import random
import re
from pathlib import Path

from tests.chaos import witness
from tests.chaos.accidents import Accidents
from tests.homes import Home
from tests.waiting import wait_until
from waypoint.client.sdk import Client
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.facts import UndoneFacts

ADD = 'ask add; steps=$((steps + 1)); echo "tally $steps"'


class Moving:
    """`live`: the expected counts of live branches. `kept`: the counts of checkpoints. `former`: the counts of replaced
    sessions, by the number of the replacing operation and the branch. `touched`: the checkpoints that the current
    operation has made or restored.
    """

    def __init__(self, home: Home, choose: random.Random) -> None:
        self.home, self.choose = home, choose
        self.client = Client(home.path)
        self.accidents = Accidents(home, choose)
        self.live: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.former: dict[tuple[int, str], int] = {}
        self.touched: set[str] = set()
        self.number = 0

    def begin(self) -> None:
        self.home.must("shell", "-d", "main", "--user", "nobody")
        self.home.must("exec", "-b", "main", "--", f"{witness.ASK}; steps=0; echo 'tally 0'")
        self.home.must(
            "exec", "-b", "main", "--", f"python3 {Path(witness.__file__)} /tmp >/tmp/witness.log 2>&1 & witness=$!"
        )
        wait_until(
            lambda: '"memory"' in self.home.must("exec", "-b", "main", "--", "ask look 2>&1").stdout,
            "the witness answers",
        )
        self.live["main"] = 0
        self.home.must("checkpoint", "k0", "--tier", "live")
        self.kept["k0"] = 0

    def recover(self, branch: str) -> None:
        """Check the home after a reboot, which has interrupted an operation on `branch`, and start a session again."""
        rows = self.home.must("ps", "--all", "--json").json()
        assert {row["state"] for row in rows} <= {"lost", "ended", "parked"}, f"after a reboot: {rows}"
        lost = {row["branch"] for row in rows if row["state"] == "lost"}
        # The result of the interrupted operation on `branch` is unknown: an end, or a fork.
        assert self.live.keys() - {branch} <= lost <= self.live.keys() | {f"b{self.number}"}
        self.remember(f"k{self.number}", branch)
        self.live.clear()
        for other in {row["branch"] for row in rows} - {"main"}:
            self.home.must("rm", other)
        for name in [name for name in self.kept if not self.is_there(name)]:  # its removal was interrupted
            assert name in self.touched, f"{name} is lost"
            del self.kept[name]
        for name in [name for name in self.kept if self.is_lost(name)]:  # it was in memory, and not yet on the disk
            refused = self.home.cli("restore", name, "-b", "main", "--json")
            assert (refused.code, refused.json()["error"]["code"]) == (5, "images-lost")
            self.forget(name)
        if self.kept:
            self.restore_main()
        else:
            self.home.must("rm", "main")
            self.begin()

    def restore_main(self) -> None:
        """Restore a random checkpoint on `main`, which is not live."""
        name = self.choose.choice(list(self.kept))
        self.home.must("restore", name, "-b", "main")
        self.live["main"] = self.kept[name]

    def discard(self, branch: str) -> None:
        """End the session without an accident; `main` continues with a random checkpoint."""
        self.home.must("stop", branch, "--discard")
        del self.live[branch]
        if branch == "main":
            self.restore_main()

    @property
    def branches(self) -> set[str]:
        return {row.branch for row in self.client.sessions()}

    def is_there(self, name: str) -> bool:
        try:
            self.client.history.show(name)
        except UnknownName:
            return False
        return True

    def is_lost(self, name: str) -> bool:
        """Whether the checkpoint is reported to have lost its processes in a reboot."""
        return any(one["code"] == "processes-lost" for one in self.client.history.show(name).degraded)

    def remember(self, name: str, branch: str, count: int | None = None) -> bool:
        """If the checkpoint `name` exists, note its count in `kept`: `count`, by default that of the session on
        `branch`. Return whether the checkpoint exists.
        """
        if not self.is_there(name):
            return False
        self.kept[name] = self.live[branch] if count is None else count
        self.touched.add(name)
        return True

    def forget(self, name: str) -> None:
        self.client.history.remove(name)
        del self.kept[name]

    def any_kept(self) -> str:
        """Return a random checkpoint, which the caller will restore or remove."""
        name = self.choose.choice(list(self.kept))
        self.touched.add(name)
        return name

    def note_replaced(self, last: int, before: dict[str, int]) -> None:
        """Note in `former` the sessions replaced by operations after number `last`, with their counts from `before`."""
        for entry in self.client.history.operations():
            if entry.number <= last:
                break
            replaced = [branch for branch, states in entry.sessions.items() if all(states)]
            self.former.update({(entry.number, branch): before[branch] for branch in replaced})

    def settle(self, branch: str, code: int, after: int) -> None:
        """Check the session's count after an operation: `after`, or the old one if the operation failed."""
        counts = set(look(self.client, branch).values())
        allowed = [{after}] if code == 0 else [{after}, {self.live[branch]}]
        assert counts in allowed, f"{branch} has {counts}, exit {code}, allowed {allowed}"
        self.live[branch] = counts.pop()


def to_undo(moving: Moving, branch: str) -> UndoneFacts | None:
    """Return the operation that an undo on the branch would undo. None if that is a checkpoint whose name was removed
    since, or if gc has made it impossible to undo.
    """
    try:
        return moving.client.history.plan_undo(branch=branch)
    except StateConflict as error:
        said, code = error.said, error.code
    if code == "undo-expired":
        return None
    oldest = re.match(r"(k\d+) has been changed since", said)
    assert oldest, said
    assert oldest[1] not in moving.kept, said
    return None


def look(client: Client, branch: str) -> dict[str, int]:
    """Return the count of each witness in the session."""
    session = client.session(branch)
    *said, steps = session.exec("ask look; echo $steps").output.splitlines()
    assert said, f"{branch}: the witness does not answer"
    seen = re.findall(rb"tally (\d+)", b"".join(session.logs()))
    return {**json.loads(said[0]), "steps": int(steps), "tally": int(seen[-1])}


def listed(counter: collections.Counter[str]) -> str:
    """Return the counts as text, the highest first."""
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())
