"""The transactions that change a live session, with the steps that each passes, and what holds after each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pexpect
import pytest

from tests.homes import Home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import PATIENCE_S
from waypoint.capture.steps import Step
from waypoint.client import Client
from waypoint.model.errors import UnknownName

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
    then. `dead`: w is stopped first. `first`: commands that make something for `argv` to work on.
    """

    argv: tuple[str, ...]
    steps: tuple[Step, ...]
    sure: tuple[Step, ...]
    is_done: Callable[[Client], bool]
    becomes: str = "yes changed changed"  # what w says once it is done
    new: tuple[str, ...] = ()  # what can be forked, or answers, once it is done
    ends: bool = False
    dead: bool = False
    dumps: bool = field(default=True)
    first: tuple[tuple[str, ...], ...] = ()

    def prepare(self, home: Home) -> None:
        if self.dead:
            home.must("stop", "w")
        for command in self.first:
            home.must(*command)


TRANSACTIONS = {
    "checkpoint": Transaction(
        ("checkpoint", "new", "-b", "w", "--tier", "live"),
        steps=(*LIVE, Step.RECORDED),
        sure=(Step.RECORDED,),
        is_done=lambda client: is_name(client, "new"),
        new=("new",),
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
    "gc": Transaction(
        ("gc", "--keep-operations", "0"),
        steps=(Step.REMOVING,),
        sure=(Step.REMOVING,),
        is_done=lambda client: not client.history.gc(keep_operations_s=0, dry_run=True).removed,
        dumps=False,
        first=(("checkpoint", "--force", "passing", "-b", "w"),) * 3,
    ),
}


@dataclass(frozen=True)
class Ground:
    home: Home
    pauses: Pauses
    client: Client


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    pauses = Pauses(tmp_path_factory.mktemp("pauses"))
    with pauses.open_home("faults") as home:
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


def check_terminal(home: Home, branch: str) -> None:
    argv = home.argv("attach", branch)
    person = pexpect.spawn(argv[0], argv[1:], env=home.env, timeout=PATIENCE_S)
    try:
        person.sendline("echo back$((40 + 2))")
        person.expect("back42\r\n")
    finally:
        person.close(force=True)


def check_after(w: Ground, transaction: Transaction, before: int, *, is_done: bool) -> None:
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
            assert say(client, "again") == "yes changed changed"
        else:
            assert say(client, name) == "yes old old"
    ledger.check(w.home)
    done = {"checkpoint", "park", "fork", "restore", "end", "discard", "start", "gc"}
    assert {one.verb for one in client.history.operations(len(client.history.operations()) - before)} <= done
