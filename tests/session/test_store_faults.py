"""What is done with captures in the store, with something killed, or an error met, at each of its steps: afterwards
what names stand for is whole, and nothing else is there.
"""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from tests.faults import some
from tests.homes import MIB
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.session.store_works import (
    BY_DAEMON,
    NEW,
    WORKS,
    WRITING,
    StoreGround,
    Work,
    check_after,
    clean,
    files_for,
    worded,
)
from tests.store.exports.forging import look
from tests.waiting import PATIENCE_S, holds_within
from waypoint.capture.steps import Step, StoreStep
from waypoint.client import Client
from waypoint.model.paths import hot_memory_path
from waypoint.store.content.write_steps import WriteStep

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]
NO_ERROR = (StoreStep.FILES_GONE, StoreStep.INSPECTED)  # nothing that could fail comes right behind them
READ = ("recall", "evict")  # the same is there before and afterwards
GONE = "the daemon (closed the connection before it had answered|has gone|was stopped or replaced)"
SEEN_S = 0.5
"""So long the daemon may go on with what a client has asked for that was killed."""
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}


@dataclass(frozen=True)
class Case:
    work: str
    step: StrEnum
    victim: str

    def __str__(self) -> str:
        return f"{self.work}-{self.step}-{self.victim}"


CASES = [
    Case(name, step, victim)
    for name, work in WORKS.items()
    for step in work.steps
    for victim in ("program", "daemon", "client", *ERRORS)
    if (victim != "program" or step not in BY_DAEMON) and (victim not in ERRORS or step not in NO_ERROR)
]


def aspects(case: Case) -> list[tuple[object, ...]]:
    """Something happens in each work, in each third of what putting writes, by a capture and by an import, at each step
    of a compaction, and at each other step; each victim is hit, in the daemon's own steps and in others; and a disk
    that fails, or is full, is met in each work that writes.
    """
    step: object = case.step
    if case.step in WRITING:
        step = case.work, WRITING.index(case.step) // 3
    found = [(step,), (case.work,), (case.victim, case.step in BY_DAEMON)]
    if case.work in ("put", "import", "gc"):
        found.append((case.work, case.victim in ERRORS))
    if case.work == "export" and case.victim == "client":  # which writes the file
        found.append((case.work, case.victim))
    return found


@pytest.fixture(scope="module")
def ground(pauses: Pauses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreGround]:
    with pauses.open_home("store") as home:
        config = home.path / "config.json"
        config.write_text(
            json.dumps(json.loads(config.read_bytes()) | {"base_files_bytes": 0, "durable_after_s": None})
        )
        client = Client(home.path)
        client.start("w").exec("kept=yes; echo one > /srv/mark")
        home.must("checkpoint", "base", "-b", "w", "--wait")
        made = StoreGround(home, pauses, client, tmp_path_factory.mktemp("store-works"))
        files_for(made)
        yield made


@pytest.fixture(autouse=True)
def _cleaned(ground: StoreGround) -> Iterator[None]:
    yield
    clean(ground)


def hit(case: Case, ground: StoreGround, pid: int, command: subprocess.Popen[bytes]) -> None:
    victim = {"program": pid, "daemon": ground.client.status().pid, "client": command.pid}[case.victim]
    pidfd = os.pidfd_open(victim)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def check_told(case: Case, code: int, said: str, *, is_done: bool) -> None:
    """Who has asked is told what has happened, and that it is not done. (What a command reads is there all the same,
    and packs that are retired are removed by whoever comes next.)
    """
    if case.victim == "client":
        assert code == -signal.SIGKILL
        return
    assert is_done == (case.work in READ) or case.step in (WriteStep.RETIRED, WriteStep.REMOVED)
    assert code == (1 if case.work == "gc" and case.victim != "daemon" else 125), said
    if case.victim == "daemon":
        assert re.search(GONE, said), said
    else:
        told = os.strerror(ERRORS[case.victim]) if case.victim in ERRORS else "the program for it has ended: status -9"
        assert re.search(f"{told}.*next: ", said, re.DOTALL), said


@pytest.mark.parametrize("case", some(CASES, aspects), ids=str)
def test_whatever_happens_nothing_is_lost_or_left(ground: StoreGround, case: Case) -> None:
    work = WORKS[case.work]
    work.prepare(ground)
    with ground.pauses.armed(case.step) as armed, ground.home.background(*worded(ground, work.argv)) as command:
        assert armed.wait() == case.step
        if case.victim in ERRORS:
            armed.go_on(ERRORS[case.victim])
        else:
            hit(case, ground, armed.pid, command)
            with contextlib.suppress(OSError):  # whoever stood there has died
                armed.go_on()
        err = command.communicate(timeout=PATIENCE_S)[1]
    is_done = holds_within(SEEN_S, lambda: work.is_done(ground)) if case.victim == "client" else work.is_done(ground)
    check_told(case, command.returncode, err.decode(), is_done=is_done)
    check_after(ground, work, is_done=is_done, may_come=case.victim == "client")


def beside(ground: StoreGround, first: Work, step: StrEnum, second: tuple[str, ...]) -> None:
    """Have `first` stand at the step while `second` is asked for; then both go on, and do what they should."""
    home = ground.home
    with ground.pauses.armed(step) as armed, home.background(*worded(ground, first.argv)) as one:
        assert armed.wait() == step
        with home.background(*second) as other:
            assert not holds_within(SEEN_S, lambda: other.poll() is not None), "it waits for its turn"
            armed.go_on()
            said = [command.communicate(timeout=PATIENCE_S)[1] for command in (one, other)]
            assert [one.returncode, other.returncode] == [0, 0], said
    assert first.is_done(ground)
    check_after(ground, first, is_done=True)


def test_what_is_removed_and_what_is_put_at_the_same_moment_take_turns(ground: StoreGround) -> None:
    """A `gc` beside a capture of which a part is in the store and no image has it yet; and the other way round."""
    WORKS["put"].prepare(ground)
    beside(ground, WORKS["put"], WriteStep.PACK_IN_PLACE, ("gc", "--keep-operations", "0"))
    clean(ground)
    WORKS["gc"].prepare(ground)
    beside(ground, WORKS["gc"], WriteStep.COPIED, ("checkpoint", "beside", "-b", "w", "--tier", "files", "--wait"))
    assert ground.said("beside") == "live\n"


def test_where_images_are_born_is_decided_before_the_session_stands_still(ground: StoreGround) -> None:
    memory = Path(hot_memory_path(str(ground.home.path)))
    (session,) = (row.id for row in ground.client.sessions() if row.branch == "w")
    before = set(os.listdir(memory))
    with ground.pauses.armed(Step.PREPARED) as armed, ground.home.background("checkpoint", "new", "-b", "w") as command:
        assert armed.wait() == Step.PREPARED
        (born,) = set(os.listdir(memory)) - before
        assert "frozen 0" in (ledger.group_of(ground.home) / str(session) / "cgroup.events").read_text()
        armed.go_on()
        command.communicate(timeout=PATIENCE_S)
    assert ground.client.history.show("new").capture == born


def test_readers_beside_a_writer_find_what_they_should(ground: StoreGround) -> None:
    """Each in processes of its own: the store is read for a capture that is brought back, checked and exported, while
    captures are put into it, and removed with their packs.
    """
    home, rounds = ground.home, 4
    home.must("checkpoint", "sent", "-b", "w", "--wait")
    writes = threading.Event()

    def bring_back() -> None:
        assert ground.client.disk.evict("base").kept == []
        assert ground.said("base") == "one\n"

    def check() -> None:
        assert home.must("verify", "--read-data", "--json").json()["problems"] == []

    def send() -> None:
        path = ground.files / "out/base"
        home.must("export", "sent", "--alone", str(path))
        assert look(path.read_bytes()).name == "sent"
        path.unlink()

    def again_and_again(act: Callable[[], None]) -> int:
        count = 0
        while not count or writes.is_set():
            act()
            count += 1
        return count

    writes.set()
    with ThreadPoolExecutor(3) as readers:
        reading = [readers.submit(again_and_again, act) for act in (bring_back, check, send)]
        try:
            for number in range(rounds):
                ground.write("live", 2 * MIB)
                home.must(*NEW, "--wait", "--force")
                if number % 2:
                    home.must("rm", "new")
                    home.must("gc", "--keep-operations", "0")
        finally:
            writes.clear()
        assert all(one.result() for one in reading)
    check_after(ground, WORKS["recall"], is_done=True)
