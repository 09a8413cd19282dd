"""Checkpoint, fork, restore and stop, with something killed at each of their steps: afterwards there is the old state,
or the new one, a session that answers, and nothing else.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pexpect
import pytest

from tests.homes import Home, open_home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import wait_until
from waypoint.capture.steps import Step
from waypoint.client import Client
from waypoint.model.errors import UnknownName

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2")]

DEADLINE_S = 30.0
FILES = (Step.PREPARED, Step.FROZEN, Step.DRAINED, Step.SEALED, Step.THAWED)
LIVE = (*FILES, Step.DUMPED)
DUMPING = (Step.FROZEN, Step.DRAINED, Step.SEALED, Step.DUMPED)
START = (Step.RESERVED, Step.GROUNDED, Step.RESTORED, Step.CONFIRMED)
END = (Step.ENDED, Step.CONCLUDED)


def is_name(client: Client, name: str) -> bool:
    try:
        client.history.show(name)
    except UnknownName:
        return False
    return True


def is_live(client: Client, branch: str) -> bool:
    return branch in {row.branch for row in client.sessions()}


def say(client: Client, branch: str) -> str:
    """What the session's shell has in its variables, and on its disk."""
    return client.session(branch).exec("echo $kept $mark $(cat /srv/mark)").output.decode().strip()


@dataclass(frozen=True)
class Transaction:
    """`argv`: the command, on the live branch `w`. `steps`: those that it passes. `sure`: those from which on the new
    state is there, even if everything is killed. `is_done`: whether the new state is there. `ends`: w lives no more
    then. `dead`: w is stopped first.
    """

    argv: tuple[str, ...]
    steps: tuple[Step, ...]
    sure: tuple[Step, ...]
    is_done: Callable[[Client], bool]
    becomes: str = "yes changed changed"  # what w says once it is done
    new: tuple[str, ...] = ()  # what can be forked, or answers, once it is done
    ends: bool = False
    dead: bool = False
    needs_criu: bool = False  # it fails without CRIU, rather than keep less
    dumps: bool = field(default=True)


TRANSACTIONS = {
    "checkpoint": Transaction(
        ("checkpoint", "new", "-b", "w", "--tier", "live"),
        steps=(*LIVE, Step.RECORDED),
        sure=(Step.RECORDED,),
        is_done=lambda client: is_name(client, "new"),
        new=("new",),
        needs_criu=True,
    ),
    "checkpoint-files": Transaction(
        ("checkpoint", "new", "-b", "w", "--tier", "files"),
        steps=(*FILES, Step.RECORDED),
        sure=(Step.RECORDED,),
        is_done=lambda client: is_name(client, "new"),
        dumps=False,
    ),
    "park": Transaction(
        ("checkpoint", "new", "-b", "w", "--park"),
        steps=(*LIVE, Step.RECORDED, *END),
        sure=(Step.RECORDED, *END),
        is_done=lambda client: is_name(client, "new") and not is_live(client, "w"),
        new=("new",),
        ends=True,
    ),
    "fork": Transaction(
        ("fork", "base", "f1", "f2", "f3"),
        steps=START,
        sure=(Step.CONFIRMED,),
        is_done=lambda client: is_live(client, "f1"),
        new=("f1", "f2", "f3"),
        dumps=False,
    ),
    "fork-of-live": Transaction(
        ("fork", "w", "f1", "f2", "f3"),
        steps=(*LIVE, *START),
        sure=(Step.CONFIRMED,),
        is_done=lambda client: is_live(client, "f1"),
    ),
    "restore": Transaction(
        ("restore", "base", "-b", "w"),
        steps=(*LIVE, *START, *END),
        sure=(Step.CONFIRMED, *END),
        is_done=lambda client: say(client, "w") == "yes old old",
        becomes="yes old old",
    ),
    "restore-files": Transaction(
        ("restore", "base", "-b", "w", "--only", "files"),
        steps=(*LIVE, Step.RECORDED, Step.REWOUND),
        sure=(Step.RECORDED, Step.REWOUND),
        is_done=lambda client: say(client, "w") == "yes changed old",
        becomes="yes changed old",
    ),
    "restore-of-dead": Transaction(
        ("restore", "base", "-b", "w"),
        steps=START,
        sure=(Step.CONFIRMED,),
        is_done=lambda client: is_live(client, "w"),
        becomes="yes old old",
        dead=True,
        dumps=False,
    ),
    "stop": Transaction(
        ("stop", "w"),
        steps=END,
        sure=END,
        is_done=lambda client: not is_live(client, "w"),
        ends=True,
        dumps=False,
    ),
    "discard": Transaction(
        ("stop", "w", "--discard"),
        steps=END,
        sure=END,
        is_done=lambda client: not is_live(client, "w"),
        ends=True,
        dumps=False,
    ),
}


@dataclass(frozen=True)
class Case:
    transaction: str
    step: Step
    victim: str

    def __str__(self) -> str:
        return f"{self.transaction}-{self.step}-{self.victim}"


def cases() -> list[Case]:
    found = []
    for step in Step:
        for name, transaction in TRANSACTIONS.items():
            if step in transaction.steps:
                victims = ["daemon", "client"] + (["criu"] if transaction.dumps and step in DUMPING else [])
                victims += ["launcher"] if step in (Step.PREPARED, Step.SEALED, Step.GROUNDED, Step.RESTORED) else []
                found += [Case(name, step, victim) for victim in victims]
    return found


@dataclass(frozen=True)
class Ground:
    home: Home
    pauses: Pauses
    client: Client


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    pauses = Pauses(tmp_path_factory.mktemp("pauses"))
    with open_home("faults") as home, pytest.MonkeyPatch.context() as patch:
        home.must("daemon", "stop")
        for name, value in pauses.env.items():
            patch.setenv(name, value)
        client = Client(home.path)
        base = client.start("base-branch")
        base.exec("kept=yes; mark=old; echo old > /srv/mark; sleep 1000 & while sleep 0.1; do :; done &")
        base.checkpoint("base", tier="live", park=True)
        yield Ground(home, pauses, client)


@pytest.fixture
def w(ground: Ground) -> Iterator[Ground]:
    """A live session on branch w, which has moved on from the capture `base`. Afterwards only that is left."""
    (live,) = ground.client.fork("base", "w")
    assert live.exec("mark=changed; echo changed > /srv/mark").exit == 0
    yield ground
    client = ground.client
    for row in client.sessions():
        client.session(row.branch).stop(discard=True)
    kept = {"base", "base-branch"}
    names = {name for capture in client.history.log(all=True) for name in capture.names}
    names |= {row.name for row in client.history.branches()}
    if names - kept:
        client.history.remove(*(names - kept))


@contextlib.contextmanager
def background(home: Home, argv: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        home.argv(*argv), env=home.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as client:
        try:
            yield client
        finally:
            client.kill()


def kill(case: Case, ground: Ground, command: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the victim; it is gone on return."""
    match case.victim:
        case "daemon":
            pids = [ground.client.status().pid]
        case "client":
            pids = [command.pid]
        case "launcher":
            pids = children(ground.client.status().pid, "wp-launcher")
        case _:
            pids = ledger.criu_pids(ground.home)
    killed = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # of two CRIUs the one that does not stop here may end by itself
            pidfd = os.pidfd_open(pid)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            killed += 1
    assert killed, f"there is no {case.victim}"


def children(parent: int, name: str) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in text.split() if Path(f"/proc/{pid}/comm").read_text().strip() == name]


def check_terminal(home: Home, branch: str) -> None:
    argv = home.argv("attach", branch)
    person = pexpect.spawn(argv[0], argv[1:], env=home.env, timeout=DEADLINE_S)
    try:
        person.sendline("echo back$((40 + 2))")
        person.expect("back42\r\n")
    finally:
        person.close(force=True)


def test_there_are_steps_and_each_is_passed_by_some_transaction() -> None:
    assert len(Step) > 5
    assert {step for transaction in TRANSACTIONS.values() for step in transaction.steps} == set(Step)


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_transaction_passes_the_steps_that_are_told_of_it(w: Ground, name: str) -> None:
    transaction = TRANSACTIONS[name]
    if transaction.dead:
        w.client.session("w").stop()
    passed = set()
    with w.pauses.armed(*Step) as armed, background(w.home, transaction.argv) as command:
        ended = os.pidfd_open(command.pid)
        while (step := armed.wait(or_end_of=ended)) is not None:
            passed.add(step)
            armed.go_on()
        os.close(ended)
        assert command.wait(DEADLINE_S) == 0
    assert passed == set(transaction.steps)
    assert transaction.is_done(w.client)
    ledger.check(w.home)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_whatever_is_killed_there_is_the_old_state_or_the_new_and_nothing_else(w: Ground, case: Case) -> None:
    transaction, client = TRANSACTIONS[case.transaction], w.client
    if transaction.dead:
        client.session("w").stop()
    before = len(client.history.operations())
    with w.pauses.armed(case.step) as armed, background(w.home, transaction.argv) as command:
        assert armed.wait() == case.step
        kill(case, w, command)
        if case.victim != "daemon":
            armed.go_on()
        code = command.wait(DEADLINE_S)
    if case.victim == "client":
        wait_until(lambda: transaction.is_done(client), "the daemon has seen it through")
    is_done = transaction.is_done(client)
    if case.victim == "launcher":
        assert is_done == (code == 0)
    if case.victim == "daemon":
        assert code != 0
        assert is_done == (case.step in transaction.sure)
    if case.victim == "criu":
        outcomes = {(5, False) if transaction.needs_criu else (0, True)}
        if case.transaction == "restore":  # two of them work at once: one dumps what runs, one restores
            outcomes.add((5, False))
        assert (code, is_done) in outcomes
    kept = "changed" if case.victim == "criu" else "yes changed changed"  # without CRIU a capture has the files only
    check_after(w, transaction, before, is_done=is_done, kept=kept)


@pytest.mark.parametrize("step", [Step.DRAINED, Step.DUMPED, Step.SEALED])
def test_what_was_typed_ahead_survives_a_daemon_that_is_killed_while_it_is_put_aside(w: Ground, step: Step) -> None:
    argv = w.home.argv("attach", "w")
    person = pexpect.spawn(argv[0], argv[1:], env=w.home.env, timeout=DEADLINE_S)
    try:
        person.sendline('until [ -e /tmp/go ]; do sleep 0.05; done; read it; echo "<$it>"')
        session = w.client.session("w")
        session.run("sh", "-c", "until pgrep sleep; do :; done")
        person.send("for the read\recho half")
        person.expect("\r\necho half")
        with w.pauses.armed(step) as armed, background(w.home, TRANSACTIONS["checkpoint"].argv) as command:
            assert armed.wait() == step
            kill(Case("checkpoint", step, "daemon"), w, command)
            command.wait(DEADLINE_S)
        assert session.run("touch", "/tmp/go").exit == 0
        person.expect("<for the read>\r\n")
        person.sendline("-of-it")
        person.expect("half-of-it\r\n.*half-of-it\r\n")
    finally:
        person.close(force=True)
    ledger.check(w.home)


def check_after(w: Ground, transaction: Transaction, before: int, *, is_done: bool, kept: str) -> None:
    """The session, the record, and that the same may be done again, or what was made be used."""
    client = w.client
    lives = not (is_done and transaction.ends) and (is_done or not transaction.dead)
    assert is_live(client, "w") == lives
    if lives:
        assert say(client, "w") == (transaction.becomes if is_done else "yes changed changed")
        check_terminal(w.home, "w")
    ledger.check(w.home)
    if not is_done:
        w.home.must(*transaction.argv)
        assert transaction.is_done(client)
    for name in transaction.new:
        if name == "new":
            client.fork(name, "again")
            assert say(client, "again") == (kept if is_done else "yes changed changed")
        else:
            assert say(client, name) == "yes old old"
    ledger.check(w.home)
    done = {"checkpoint", "park", "fork", "restore", "end", "discard", "start"}
    assert {one.verb for one in client.history.operations(len(client.history.operations()) - before)} <= done
