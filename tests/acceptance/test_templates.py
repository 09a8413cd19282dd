"""Restores of large processes share memory with a template, which may be killed; each has its own, complete memory."""

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.people import Person
from tests.acceptance.restoring import in_process, new_name, restore_as, started
from tests.homes import Home
from tests.processes_now import processes, read
from tests.waiting import wait_until
from waypoint.client import Client
from waypoint.client.sdk import Session
from waypoint.launch.spec import TEMPLATE_IMAGES_FD, TEMPLATE_PLAN_FD

pytestmark = [pytest.mark.privileged, pytest.mark.requires("criu", "own-criu")]

WITNESS = Path(__file__).with_name("witness_large.py")
FEW_KIB = 16 << 10
SEED = int(os.environ.get("WAYPOINT_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
ROUNDS = 12


@contextlib.contextmanager
def large(home: Home, person: Person) -> Iterator[tuple[Session, str]]:
    """A session with large memory, and its checkpoint."""
    with started(home, person.name) as session:
        session.run("sh", "-c", "cat >/tmp/large.py; mkdir /tmp/large", stdin=WITNESS.read_bytes())
        session.exec("python3 /tmp/large.py /tmp/large </dev/null >/tmp/large.log 2>&1 & echo $! >/tmp/large.pid")
        in_process(session, "until [ -p /tmp/large/ask -o -s /tmp/large.log ]; do sleep 0.02; done; cat /tmp/large.log")
        checkpoint = new_name(session)
        session.checkpoint(checkpoint, tier="live")
        yield session, checkpoint


def ask(session: Session, words: str) -> str:
    return in_process(session, f"echo '{words}' >/tmp/large/ask; timeout 90 cat /tmp/large/answer")


def own_kib(session: Session) -> int:
    """Memory of the program that no other process shares."""
    said = in_process(session, "cat /proc/$(cat /tmp/large.pid)/smaps_rollup")
    return sum(int(line.split()[1]) for line in said.splitlines() if line.startswith("Private_"))


def niceness(session: Session) -> str:
    """That of the program, and that of its process session among all, if the kernel has one."""
    told = "cd /proc/$(cat /tmp/large.pid); cut -d' ' -f19 stat; cut -d' ' -f3 autogroup 2>/dev/null || true"
    return in_process(session, told).strip()


def templates(home: Home) -> list[int]:
    """The pids of the templates of the home."""
    ends = f"\0{TEMPLATE_PLAN_FD}\0{TEMPLATE_IMAGES_FD}\0".encode()
    found = []
    for process in processes():
        with contextlib.suppress(OSError):  # it has ended
            if (
                read(f"{process.folder}/cmdline").endswith(ends)
                and home.id in read(f"{process.folder}/cgroup").decode()
            ):
                found.append(process.pid)
    return found


def kill_templates(home: Home) -> int:
    """Return how many there were."""
    pids = templates(home)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def test_large_forks_share_memory_until_they_write(home: Home, person: Person) -> None:
    with large(home, person) as (session, checkpoint):
        before = ask(session, "digest")
        one, other = (restore_as(home, session, checkpoint, "fork") for _ in range(2))
        assert max(own_kib(fork) for fork in (one, other)) < FEW_KIB
        assert {niceness(one), niceness(session)} <= {"0", "0\n0"}, "the template's priority"
        assert ask(one, "write abc") != ask(other, "read")
        assert ask(one, "digest") != before
        for act, said in {"digest": before, "child": before, "drop": "zeros", "run": "42", "read": ""}.items():
            assert ask(other, act) == (said or ask(session, "read"))
        assert ask(session, "digest") == before
        # A capture of a fork has all memory.
        again = new_name(session)
        one.checkpoint(again, tier="live")
        changed = ask(one, "digest")
        assert ask(restore_as(home, one, again, "restore"), "digest") == changed


def test_forks_survive_a_killed_template_and_a_killed_daemon(home: Home, person: Person) -> None:
    with large(home, person) as (session, checkpoint):
        before = ask(session, "digest")
        forks = [restore_as(home, session, checkpoint, "fork")]
        assert kill_templates(home)
        wait_until(lambda: not templates(home), "the template ends")
        forks.append(restore_as(home, session, checkpoint, "fork"))
        assert templates(home)
        os.kill(home.must("daemon", "status", "--json").json()["pid"], signal.SIGKILL)
        wait_until(lambda: not templates(home), "the template ends")
        forks.append(restore_as(home, session, checkpoint, "fork"))
        assert [ask(fork, "digest") for fork in forks] == [before] * 3


@pytest.mark.soak(part="criu")
def test_forks_are_whole_while_templates_are_killed_at_random(home: Home, person: Person) -> None:
    print(f"WAYPOINT_TEST_SEED={SEED}")
    chance, over, killed = random.Random(SEED), threading.Event(), []

    def kill() -> None:
        while not over.wait(chance.uniform(0, 0.3)):
            killed.append(kill_templates(home))

    with large(home, person) as (session, _checkpoint):
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for number in range(ROUNDS):
                expected = ask(session, f"write {number}")
                checkpoint = new_name(session)
                session.checkpoint(checkpoint, tier="live")
                forks = Client(home.path).fork(checkpoint, *(f"{checkpoint}-{one}" for one in range(3)), tier="live")
                assert [ask(fork, "read") for fork in forks] == [expected] * 3
                assert {ask(fork, "digest") for fork in forks} == {ask(session, "digest")}
                for fork in forks:
                    fork.stop(discard=True)
        finally:
            over.set()
            killer.join()
    assert sum(killed)
