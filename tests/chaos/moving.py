"""What a test with random operations knows of a home: which sessions are live, which checkpoints there are, and the
count that each has (witness.py).
"""

import collections
import contextlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tests.chaos import victims, witness
from tests.chaos.accidents import Accidents
from tests.homes import Home
from tests.waiting import DEADLINE_S, holds_within, wait_until
from waypoint.capture.layers.processes import LOST
from waypoint.client.sdk import Client
from waypoint.model.errors import StateConflict, UnknownName
from waypoint.model.facts import UndoneFacts

ADD = 'ask add; steps=$((steps + 1)); echo "tally $steps"'
_HAS_ENDED = "kill -0 $witness 2>&- || { wait $witness; echo $?; }"


class Harmed(Exception):
    """A CRIU that was killed as it dumped the session on `branch` has ended a program of the session: the only thing
    that it may do (docs/criu.md, "When CRIU is killed").
    """

    def __init__(self, branch: str) -> None:
        super().__init__(branch)
        self.branch = branch


class Moving:
    """`live`: the branches with a session, `kept`: the checkpoints, each with its count. `former`: by the number of an
    operation that has replaced a session, and the branch, its count. `touched`: the checkpoints that the operation at
    hand has made or brought back. `harmed`: how many sessions a killed CRIU has harmed. `lost`: how many checkpoints
    reboots have cost.
    """

    def __init__(self, home: Home, choose: random.Random) -> None:
        self.home, self.choose = home, choose
        self.client = Client(home.path)
        self.accidents = Accidents(home, choose)
        self.live: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.former: dict[tuple[int, str], int] = {}
        self.touched: set[str] = set()
        self.harmed = self.lost = 0
        self.number = 0

    def begin(self) -> None:
        self.home.must("shell", "-d", "main", "--user", "nobody")
        self.home.must("exec", "--", f"{witness.ASK}; steps=0; echo 'tally 0'")
        self.home.must("exec", "--", f"python3 {Path(witness.__file__)} /tmp >/tmp/witness.log 2>&1 & witness=$!")
        wait_until(lambda: '"memory"' in self.home.must("exec", "--", "ask look 2>&1").stdout, "the witness answers")
        self.live["main"] = 0
        self.home.must("checkpoint", name := f"k{self.number}", "--tier", "live")
        self.kept[name] = 0

    def go_on(self, branch: str, alone: set[str]) -> None:
        """After a reboot, which has interrupted an operation on `branch`. `alone`: the captures whose images were in
        memory alone.
        """
        rows = self.home.must("ps", "--all", "--json").json()
        assert {row["state"] for row in rows} <= {"lost", "ended", "parked"}, f"after a reboot: {rows}"
        lost = {row["branch"] for row in rows if row["state"] == "lost"}
        # Of the operation on `branch` nobody was told whether it is done: an end, or a fork.
        assert self.live.keys() - {branch} <= lost <= self.live.keys() | {f"b{self.number}"}
        self.remember(f"k{self.number}", branch)
        self.live.clear()
        for other in {row["branch"] for row in rows} - {"main"}:
            self.home.must("rm", other)
        for name in [name for name in self.kept if not self.is_there(name)]:  # its removal was interrupted
            assert name in self.touched, f"{name} is lost"
            del self.kept[name]
        self.mourn(alone)
        if self.kept:
            return self.go_on_with_main()
        self.home.must("rm", "main")
        self.begin()
        self.home.must("gc", "--keep-operations", "0s")  # there is no way back before that
        return None

    def mourn(self, alone: set[str]) -> None:
        """After a reboot those checkpoints are lost whose images were in memory alone and that were not in the store,
        and no others. Each of them is told by name; its files and the state of its shell are there. Then it is removed.
        """
        shown = {name: self.client.history.show(name) for name in self.kept}
        lost = [name for name, one in shown.items() if one.capture in alone and not one.durable]
        for name in lost:
            refused = self.home.cli("restore", name, "-b", "main")
            assert (refused.code, LOST in refused.stderr) == (10, True), f"{name} is lost: {refused.stderr}"
        if lost:
            name = self.choose.choice(lost)
            self.home.must("restore", name, "-b", "main", "--tier", "respawn")
            steps = int(self.client.session("main").exec("echo $steps").output)
            count = int(self.home.must("cat", f"{name}:/tmp/count").stdout)  # in the session the witness begins anew
            assert (count, steps) == (self.kept[name],) * 2, f"{name} should have {self.kept[name]}"
            self.home.must("stop", "main", "--discard")
        for name in lost:
            self.forget(name)
        self.lost += len(lost)

    def go_on_with_main(self) -> None:
        """Bring any of the checkpoints back on `main`, which is not live."""
        name = self.choose.choice(list(self.kept))
        self.home.must("restore", name, "-b", "main")
        self.live["main"] = self.kept[name]

    def throw_away(self, branch: str) -> None:
        """End the session without an accident; `main` then goes on with another one."""
        self.home.must("stop", branch, "--discard")
        del self.live[branch]
        if branch == "main":
            self.go_on_with_main()

    @contextlib.contextmanager
    def mourning(self) -> Iterator[None]:
        """If a session turns out to be harmed in the `with` block, it is replaced, and so are the checkpoints that may
        show it as it is.
        """
        try:
            yield
        except Harmed as error:
            self.harmed += 1
            assert self.harmed <= self.accidents.killed("criu"), "more was harmed than CRIUs were killed"
            for name in self.touched & self.kept.keys():
                if len(self.kept) > 1:
                    self.forget(name)
            self.throw_away(error.branch)

    # --- what is there

    @property
    def branches(self) -> set[str]:
        return {row.branch for row in self.client.sessions()}

    def is_there(self, name: str) -> bool:
        """Whether there is a checkpoint `name`."""
        try:
            self.client.history.show(name)
        except UnknownName:
            return False
        return True

    def remember(self, name: str, branch: str, count: int | None = None) -> bool:
        """Whether there is a checkpoint `name`, which was to be made of the session on `branch`. `count`: its count,
        None: that of the session.
        """
        if not self.is_there(name):
            return False
        self.kept[name] = self.live[branch] if count is None else count
        self.touched.add(name)
        return True

    def forget(self, name: str) -> None:
        """Remove the checkpoint."""
        self.client.history.remove(name)
        del self.kept[name]

    def any_kept(self) -> str:
        """A checkpoint to be brought back."""
        name = self.choose.choice(list(self.kept))
        self.touched.add(name)
        return name

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
        counts = set(look(self.client, branch).values())
        allowed = [{after}] if code == 0 else [{after}, {self.live[branch]}]
        assert counts in allowed, f"{branch} has {counts}, exit {code}, allowed {allowed}"
        self.live[branch] = counts.pop()


def to_undo(moving: Moving, branch: str) -> UndoneFacts | None:
    """What an undo on the branch would take back; None if that is a checkpoint whose name was removed since, or older
    than what a gc has kept.
    """
    said = ""
    try:
        return moving.client.history.plan_undo(branch=branch)
    except StateConflict as error:
        said = error.said
    if "gc" in said:
        return None
    oldest = re.match(r"(k\d+) has been moved since", said)
    assert oldest, said
    assert oldest[1] not in moving.kept, said
    return None


def look(client: Client, branch: str) -> dict[str, int]:
    """What each witness in the session says. Raises Harmed if their program was ended by a killed CRIU."""
    session = client.session(branch)
    *said, steps = session.exec("ask look; echo $steps").output.splitlines()
    if not said or not said[0].startswith(b"{"):
        # It has ended, or is about to, as its peer has.
        holds_within(DEADLINE_S, lambda: session.exec(_HAS_ENDED).output != b"")
        status = session.exec(_HAS_ENDED).output.strip()
        assert status in {b"%d" % one for one in victims.STATUS_BY_CRIU}, f"{branch}: {said}, ended with {status!r}"
        raise Harmed(branch)
    seen = re.findall(rb"tally (\d+)", b"".join(session.logs()))
    return {**json.loads(said[0]), "steps": int(steps), "tally": int(seen[-1])}


def is_told(counter: collections.Counter[str]) -> str:
    """The counts in words, the highest first."""
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())
