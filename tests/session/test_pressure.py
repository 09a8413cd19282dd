"""After random work of many clients on a few branches, the records match the machine, and every session answers."""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.people import new_person
from tests.homes import Home, open_home
from tests.session import ledger
from tests.waiting import PATIENCE_S
from waypoint.client import Client
from waypoint.model.errors import StateConflict, UnknownName

pytestmark = [
    pytest.mark.soak(part="chaos"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2"),
]

SECONDS = float(os.environ.get("WAYPOINT_TEST_PRESSURE_S", "15"))
SEED = int(os.environ.get("WAYPOINT_TEST_SEED", "1"))
CLIENTS = 4
BRANCHES = ["a", "b", "c", "d", "e"]
CHECKPOINTS = ["x", "y", "z"]
KINDS = {"exec", "checkpoint", "fork", "restore", "restore_files", "stop", "look"}


@pytest.fixture
def pressed() -> Iterator[Home]:
    with open_home("pressure") as fresh:
        yield fresh


@pytest.fixture
def user() -> Iterator[str]:
    """A user whose startup files take no locks: in a capture of such a moment, a lock would be held forever."""
    with new_person("p", "/bin/bash") as person:
        yield person.name


class Worker:
    """A client that does random work, given by a seed. Its requests may be refused for a conflict, but not fail."""

    def __init__(self, home: Home, user: str, seed: int) -> None:
        self._user = user
        self._client = Client(home.path)
        self._choose = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def work(self, is_over: Callable[[], bool]) -> None:
        acts = [
            self.exec,
            self.exec,
            self.checkpoint,
            self.fork,
            self.restore,
            self.restore_files,
            self.stop,
            self.look,
        ]
        while not is_over():
            act = self._choose.choice(acts)
            name = act.__name__
            try:
                act(self._choose.choice(BRANCHES))
                self.done[name] += 1
            except (StateConflict, UnknownName) as error:
                self.refused[f"{name}: {error.said}"] += 1

    def exec(self, branch: str) -> None:
        if branch not in {row.branch for row in self._client.sessions()}:
            self._client.start(branch, user=self._user, cwd="/tmp")
        done = self._client.session(branch).exec("n=$((n + 1)); echo $n >> ~/n; echo done", wait_prompt_s=PATIENCE_S)
        # 125 from Waypoint: the session was stopped or replaced meanwhile.
        assert (done.output, done.exit) == (b"done\n", 0) or (done.exit, done.by) == (125, "waypoint"), done

    def checkpoint(self, branch: str) -> None:
        name, choose = self._choose.choice(CHECKPOINTS), self._choose
        tier = choose.choice(["auto", "files", "live"])
        self._client.session(branch).checkpoint(
            name,
            tier=tier,  # type: ignore[arg-type]
            force=choose.random() < 0.7,
            park=choose.random() < 0.2,
        )

    def fork(self, branch: str) -> None:
        self._client.fork(self._choose.choice(BRANCHES + CHECKPOINTS), branch)

    def restore(self, branch: str) -> None:
        self._client.session(branch).restore(self._choose.choice(BRANCHES + CHECKPOINTS))

    def restore_files(self, branch: str) -> None:
        self._client.session(branch).restore(self._choose.choice(CHECKPOINTS), only="files")

    def stop(self, branch: str) -> None:
        self._client.session(branch).stop(discard=self._choose.random() < 0.5)
        if self._choose.random() < 0.7:
            self._client.history.remove(branch)

    def look(self, branch: str) -> None:
        history = self._client.history
        self._client.sessions(all=True)
        history.branches()
        history.log(all=True)
        history.operations()


def test_the_records_match_the_machine_after_random_work_of_many_clients(pressed: Home, user: str) -> None:
    workers = [Worker(pressed, user, SEED * CLIENTS + number) for number in range(CLIENTS)]
    end = time.monotonic() + SECONDS

    def is_over() -> bool:
        """Return whether the time is over. A slow machine gets more time until each kind of work has succeeded."""
        is_all_done = set().union(*(set(worker.done) for worker in workers)) == KINDS
        return time.monotonic() > (end if is_all_done else end + 3 * SECONDS)

    with ThreadPoolExecutor(CLIENTS) as threads:
        begun = [threads.submit(worker.work, is_over) for worker in workers]
    failures = [repr(one.exception()) for one in begun if one.exception()]
    done = sum((worker.done for worker in workers), Counter())
    print(done, sum((worker.refused for worker in workers), Counter()))
    assert not failures, "\n".join(failures)
    assert set(done) == KINDS
    client = Client(pressed.path)
    for row in client.sessions():
        done = pressed.cli("exec", "-b", row.branch, "--wait-prompt", "20", "--", "echo on")
        assert (done.stdout, done.code) == ("on\n", 0), f"{row.branch}: {done.stderr}"
    ledger.check(pressed)
    for capture in client.history.log(all=True):
        for name in capture.names:
            assert client.history.show(name).capture == capture.capture
