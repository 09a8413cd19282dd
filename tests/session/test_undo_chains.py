"""Several undos take back operations one by one, as in an editor. Undoing these undos brings back the later states.

In the session, a program counts in its memory, in a file, and at the other end of a TCP connection (chaos/witness.py).
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.chaos import witness
from tests.homes import Home, open_home
from tests.session import ledger
from tests.waiting import wait_until
from waypoint.client import Client
from waypoint.client.sdk import Session
from waypoint.model.facts import OperationFacts

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2"),
]

BRANCH = "w"
FILES_ONLY = "restore the files of a"


def session(client: Client) -> Session:
    return client.session(BRANCH)


STEPS: dict[str, Callable[[Client], object]] = {
    "checkpoint a": lambda client: session(client).checkpoint("a", tier="live"),
    "checkpoint b": lambda client: session(client).checkpoint("b", tier="live"),
    "move b": lambda client: session(client).checkpoint("b", tier="live", force=True),
    "remove b": lambda client: client.history.remove("b"),
    "restore a": lambda client: client.restore("a"),
    "restore b": lambda client: client.restore("b"),
    FILES_ONLY: lambda client: client.restore("a", only="files"),
    "park as c": lambda client: session(client).checkpoint("c", park=True),
    "stop as d": lambda client: session(client).stop(checkpoint="d"),
    "start": lambda client: client.start(BRANCH),
    "fork": lambda client: client.fork(BRANCH, "f"),
    "checkpoint e of the fork": lambda client: client.session("f").checkpoint("e", tier="live"),
    "end the fork": lambda client: client.session("f").stop(checkpoint="end"),
    "rename the fork": lambda client: client.history.rename("f", "g"),
}

CHAINS = {
    "a person tries things": ["checkpoint a", "checkpoint b", "restore a"],
    "a restore of the tip": ["checkpoint a", "restore a", "restore a", "checkpoint b", "restore b"],
    "one aspect": ["checkpoint a", FILES_ONLY, "checkpoint b", FILES_ONLY, "restore a", "remove b"],
    "ends and starts": ["checkpoint a", "park as c", "start", "stop as d", "start", "checkpoint b", "restore a"],
    "a restore of a branch that is not live": ["checkpoint a", "checkpoint b", "park as c", "restore a", "move b"],
    "forks": ["checkpoint a", "fork", "checkpoint e of the fork", "restore a", "end the fork", "rename the fork"],
}


class State(NamedTuple):
    """`names`: the capture of each name. `counts`: by live branch, the counts of its witness."""

    names: dict[str, str | None]
    counts: dict[str, dict[str, int]]


class Timeline:
    """A live session with a witness, whose counts change before each new state, so that all states differ."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.client = Client(home.path)
        first = self.client.start(BRANCH)
        first.run("tee", "/srv/witness.py", stdin=Path(witness.__file__).read_bytes())
        first.exec(f"{witness.ASK}; mkdir /srv/w; python3 /srv/witness.py /srv/w &")
        wait_until(lambda: first.exec("ask look").output.startswith(b"{"), "the witness answers")

    def count_on(self) -> State:
        for row in self.client.sessions():
            self._ask(row.branch, "add")
        return self.look()

    def look(self) -> State:
        counts = {row.branch: self._ask(row.branch, "look") for row in self.client.sessions()}
        db = sqlite3.connect(f"file:{self.home.path}/names.db?mode=ro", uri=True)
        try:
            rows = db.execute("SELECT name, record FROM refs").fetchall()
        finally:
            db.close()
        return State({name: json.loads(record)["capture"] for name, record in rows}, counts)

    def done_since(self, last: int) -> list[OperationFacts]:
        """Return the operations after the number `last`, the newest first."""
        return [one for one in self.client.history.operations(5) if one.number > last]

    def _ask(self, branch: str, word: str) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.client.session(branch).exec(f"ask {word}").output)
        return found


@pytest.fixture
def line() -> Iterator[Timeline]:
    with open_home("chains") as home:
        yield Timeline(home)


class Done(NamedTuple):
    """A step: the state `then` before it, and its entries in the operation log, the oldest first."""

    then: State
    entries: list[OperationFacts]
    files_only: bool

    def state_after_undo(self, now: State) -> State:
        """Return the expected state after the step was undone in the state `now`."""
        touched = {branch: states[0] for entry in reversed(self.entries) for branch, states in entry.sessions.items()}
        counts = {branch: count for branch, count in now.counts.items() if branch not in touched}
        for branch in (branch for branch, was_live in touched.items() if was_live):
            counts[branch] = dict(self.then.counts[branch])
            if self.files_only:
                counts[branch] = {**now.counts[branch], "file": counts[branch]["file"]}
        return State(self.then.names, counts)


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(chain, id=name, marks=pytest.mark.soak(part="matrix") if number else [])
        for number, (name, chain) in enumerate(CHAINS.items())
    ],
)
def test_undos_restore_earlier_states_and_their_undos_later_ones(line: Timeline, chain: list[str]) -> None:
    history = line.client.history
    done: list[Done] = []
    for step in chain:
        then, last = line.count_on(), history.operations(1)[0].number
        STEPS[step](line.client)
        done.append(Done(then, line.done_since(last)[::-1], step == FILES_ONLY))
    undone: list[Done] = []
    for was in reversed(done):
        now = line.count_on()
        made = [history.undo() for _ in was.entries]
        assert [one.undoes for one in made] == [one.number for one in reversed(was.entries)]
        assert line.look() == was.state_after_undo(now)
        undone.append(Done(now, made, was.files_only))
    for was in reversed(undone):
        now = line.count_on()
        for one in reversed(was.entries):
            history.undo(one.number)
        assert line.look() == was.state_after_undo(now)
    numbers = {entry.number for was in done for entry in was.entries}
    assert not any(one.undone for one in history.operations() if one.number in numbers), "an operation is still undone"
    ledger.check(line.home)
