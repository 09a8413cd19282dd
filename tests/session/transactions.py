"""The commands that change a live session, as a table: the steps of each, and the state that it must leave."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pexpect
import pytest

from tests.homes import Home
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.waiting import PATIENCE_S
from waypoint.capture.steps import Step
from waypoint.client import Client, Session
from waypoint.model.errors import UnknownName

FILES = (Step.PREPARED, Step.FROZEN, Step.DRAINED, Step.SEALED, Step.THAWED)
LIVE = (*FILES, Step.DUMPED)
DUMPING = (Step.FROZEN, Step.DUMPED)
"""Steps at which CRIU waits for the daemon and none of its code runs in the session: CRIU killed there does no harm."""
START = (Step.RESERVED, Step.GROUNDED, Step.RESTORED, Step.CONFIRMED)
END = (Step.ENDED, Step.CONCLUDED)
LEAVE = (Step.DUMPED, Step.COMPLETED, *END)
"""Steps of a replaced session, after the answer (waypoint/capture/dumping_later.py)."""
APPLYING = (Step.STAGED, Step.EXCHANGED, Step.APPLIED)
"""Steps of `apply`, which changes no session: tests/session/test_applying.py."""
MOVING = (Step.COPIED, Step.SWITCHED)
"""Steps of moving a capture to the disk, which no command waits for: tests/session/test_hot_memory.py."""
FORKS = ("f1", "f2", "f3")
UNANSWERED = (
    r"waypoint: cannot get an answer to POST \S+: the daemon closed the connection before it answered\n"
    r"  next: check whether the request was carried out: waypoint --home \S+ op log\n"
)
"""The pattern of the error that a command prints if its daemon is killed before it answers."""


def replaced(branch: str, transaction: str) -> str:
    """The pattern of the lines that a command prints on stderr when it has replaced the session, or its files."""
    exchanged = r"files: \d+ changed, \d+\.\d MiB written; the session was paused for [\d.]+ s\n"
    return (exchanged if transaction == "restore-files" else "") + (
        rf"replaced: the session on {branch}, kept as \w+, tier (live|files); "
        rf"to get it back: waypoint undo -b {branch}\n"
    )


def is_name(client: Client, name: str) -> bool:
    try:
        client.history.show(name)
    except UnknownName:
        return False
    return True


def is_live(client: Client, branch: str) -> bool:
    return branch in {row.branch for row in client.sessions()}


def is_restore_undone(client: Client) -> bool:
    """Whether the last restore is undone. Unlike `say`, this does not make the shell busy."""
    return next(one for one in client.history.operations() if one.verb == "restore").undone


BEGIN = """
kept=yes; sleep 1000 & while sleep 0.1; do :; done &
coproc MEMORY { while read -r told; do if [ "$told" = ? ]; then echo "$word"; else word=$told; fi; done; }
"""
"""Starts two programs in the background, and a coprocess that keeps a word in its memory and prints it on request."""
ANSWER = "word=; { echo '?' >&${MEMORY[1]} && read -r -t 5 word <&${MEMORY[0]}; } 2>/dev/null"
OLD, CHANGED = "old yes old old old 3", "changed yes changed changed changed 2"
REWOUND = "changed yes changed old changed 2"
SHELL_RESTORED = "changed yes old changed changed 2"
ONLY_FILES = "yes changed changed 0"  # the state of a session started from files and the shell's variables alone


def tell(session: Session, word: str) -> None:
    """Write `word` to the terminal, a variable of the shell, a file and the coprocess's memory."""
    told = session.exec(f"mark={word}; echo {word} > /srv/mark; echo {word} >&${{MEMORY[1]}}; echo mark {word}")
    assert (told.exit, told.output.decode()) == (0, f"mark {word}\n")


def say(client: Client, branch: str) -> str:
    """Return the word of `tell` as it is on the session's terminal, in its shell, in the file and in the coprocess's
    memory, and the number of running background programs.
    """
    session = client.session(branch)
    said = session.exec(f"{ANSWER}; echo $kept $mark $(cat /srv/mark) $word $(jobs -rp | wc -l)").output.decode()
    shown = re.findall(rb"mark (\w+)\r?\n", b"".join(session.logs()))
    return " ".join([*(word.decode() for word in shown[-1:]), *said.split()])


@dataclass(frozen=True)
class Transaction:
    """One command under test.

    `argv`: the command, run while the branch `w` is live. `first`: commands that prepare its input. `dead`: these have
    ended `w`. `was`: the result of `say` for `w` before the command. `dumps`: the command makes CRIU dump `w`. `steps`:
    the steps that it passes (waypoint/capture/steps.py). `after`: those after the answer. `sure`: the steps after which
    the new state remains if all processes are killed. `is_done`: returns whether the new state exists. `ends`: the
    command ends the session on `w`.

    `becomes`: the result of `say` for `w` after the command. `made`: the captures and branches that the command makes,
    with the result of `say` for each (for a capture: in a fork). `undone`: the result of `say` for `w` after an undo;
    `told`: the pattern of what the undo prints on stderr. `prints`: the pattern of what the command prints on stderr.
    """

    argv: tuple[str, ...]
    steps: tuple[Step, ...]
    sure: tuple[Step, ...]
    is_done: Callable[[Client], bool]
    becomes: str = CHANGED
    made: Mapping[str, str] = field(default_factory=dict)
    undone: str = ""
    told: str = ""
    was: str = CHANGED
    prints: str = ""
    ends: bool = False
    dead: bool = False
    dumps: bool = field(default=True)
    first: tuple[tuple[str, ...], ...] = ()
    after: tuple[Step, ...] = ()

    def prepare(self, home: Home) -> None:
        for command in self.first:
            home.must(*command)
            ledger.check(home)  # waits for the end of a replaced session

    def dumping(self) -> tuple[Step, ...]:
        """The steps of DUMPING at which there is a CRIU that dumps."""
        return tuple(step for step in DUMPING if self.dumps and (step in self.after or not self.after))


TRANSACTIONS = {
    "checkpoint": Transaction(
        ("checkpoint", "new", "-b", "w", "--tier", "live"),
        steps=(*LIVE, Step.RECORDED),
        sure=(Step.RECORDED,),
        is_done=lambda client: is_name(client, "new"),
        made={"new": CHANGED},
    ),
    "checkpoint-files": Transaction(
        ("checkpoint", "new", "-b", "w", "--tier", "files"),
        steps=(*FILES, Step.RECORDED),
        sure=(Step.RECORDED,),
        is_done=lambda client: is_name(client, "new"),
        made={"new": ONLY_FILES},
        dumps=False,
    ),
    "park": Transaction(
        ("checkpoint", "new", "-b", "w", "--park"),
        steps=(*LIVE, Step.RECORDED, *END),
        sure=(Step.RECORDED, *END),
        is_done=lambda client: is_name(client, "new") and not is_live(client, "w"),
        made={"new": CHANGED},
        undone=CHANGED,
        ends=True,
    ),
    "fork": Transaction(
        ("fork", "base", *FORKS),
        steps=START,
        sure=(Step.CONFIRMED,),
        is_done=lambda client: is_live(client, "f1"),
        made=dict.fromkeys(FORKS, OLD),
        dumps=False,
    ),
    "fork-of-live": Transaction(
        ("fork", "w", *FORKS),
        steps=(*LIVE, *START),
        sure=(Step.CONFIRMED,),
        is_done=lambda client: is_live(client, "f1"),
        made=dict.fromkeys(FORKS, CHANGED),
    ),
    "restore": Transaction(
        ("restore", "base", "-b", "w"),
        steps=(*FILES, *START, *LEAVE),
        after=LEAVE,
        sure=(Step.CONFIRMED, *LEAVE),
        is_done=lambda client: say(client, "w") == OLD,
        becomes=OLD,
        undone=CHANGED,
    ),
    "restore-files": Transaction(
        ("restore", "base", "-b", "w", "--only", "files"),
        steps=(*LIVE, Step.RECORDED, Step.REWOUND),
        sure=(Step.RECORDED, Step.REWOUND),
        is_done=lambda client: say(client, "w") == REWOUND,
        becomes=REWOUND,
        undone=CHANGED,
    ),
    "restore-of-dead": Transaction(
        ("restore", "base", "-b", "w"),
        steps=START,
        sure=(Step.CONFIRMED,),
        is_done=lambda client: is_live(client, "w"),
        becomes=OLD,
        dead=True,
        dumps=False,
        first=(("stop", "--files", "w"),),
    ),
    "undo-of-park": Transaction(
        ("undo", "-b", "w"),
        steps=(Step.INTENDED, *START, Step.CARRIED_OUT, Step.UNDONE),
        sure=(Step.CONFIRMED, Step.CARRIED_OUT, Step.UNDONE),
        is_done=lambda client: is_live(client, "w") and not is_name(client, "parked"),
        dead=True,
        dumps=False,
        first=(("checkpoint", "parked", "-b", "w", "--park"),),
    ),
    "undo-of-restore": Transaction(
        ("undo", "-b", "w"),
        steps=(Step.INTENDED, *FILES, *START, Step.CARRIED_OUT, Step.UNDONE, *LEAVE),
        after=LEAVE,
        sure=(Step.CONFIRMED, Step.CARRIED_OUT, Step.UNDONE, *LEAVE),
        is_done=lambda client: say(client, "w") == CHANGED,
        was=OLD,
        first=(("restore", "base", "-b", "w"),),
    ),
    "undo-of-files": Transaction(
        ("undo", "-b", "w"),
        steps=(Step.INTENDED, *LIVE, Step.RECORDED, Step.REWOUND, Step.CARRIED_OUT, Step.UNDONE),
        sure=(Step.RECORDED, Step.REWOUND, Step.CARRIED_OUT, Step.UNDONE),
        is_done=lambda client: say(client, "w") == CHANGED,
        was=REWOUND,
        first=(("restore", "base", "-b", "w", "--only", "files"),),
    ),
    "undo-of-shell": Transaction(
        ("undo", "-b", "w"),
        steps=(Step.INTENDED, *LIVE, Step.CARRIED_OUT, Step.UNDONE),
        sure=(Step.CARRIED_OUT, Step.UNDONE),
        is_done=is_restore_undone,
        was=SHELL_RESTORED,
        first=(("restore", "base", "-b", "w", "--only", "shell"),),
    ),
    "undo-of-fork": Transaction(
        ("undo",),
        steps=(Step.INTENDED, *LIVE, Step.RECORDED, *END, Step.CARRIED_OUT, Step.UNDONE),
        sure=(Step.RECORDED, *END, Step.CARRIED_OUT, Step.UNDONE),
        is_done=lambda client: not any(is_name(client, branch) for branch in FORKS),
        prints=r"to reverse this undo: waypoint \S+ \S+ undo \d+\n",
        dumps=False,  # a killed CRIU may belong to any of the forks
        first=(("fork", "base", *FORKS),),
    ),
    "stop": Transaction(
        ("stop", "--files", "w"),
        steps=END,
        sure=END,
        is_done=lambda client: not is_live(client, "w"),
        undone=ONLY_FILES,
        told=r"will be lost: w: its processes \(capture \w+ has only files\)\n",
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
    "prove": Transaction(
        ("prove", "passing"),
        steps=(Step.RESERVED, Step.GROUNDED, Step.RESTORED),
        sure=(),
        is_done=lambda client: client.history.show("passing").proof is not None,
        dumps=False,
        first=(("checkpoint", "passing", "-b", "w"),),
    ),
    "gc": Transaction(
        ("gc", "--keep-operations", "0"),
        steps=(Step.REMOVING,),
        sure=(Step.REMOVING,),
        is_done=lambda client: not client.history.gc(keep_operations_s=0, dry_run=True).removed,
        dumps=False,
        first=(("checkpoint", "--force", "--anew", "passing", "-b", "w"),) * 3,
    ),
}


@dataclass(frozen=True)
class PausableHome:
    """A home whose daemon can be stopped at steps of its operations. Its capture `base` was made by
    `checkpoint --park`, which ended the session.
    """

    home: Home
    pauses: Pauses
    client: Client


@pytest.fixture(scope="module")
def pausable_home(pauses: Pauses) -> Iterator[PausableHome]:
    with pauses.open_home("faults") as home:
        client = Client(home.path)
        base = client.start("base-branch")
        base.exec(BEGIN)
        tell(base, "old")
        base.checkpoint("base", tier="live", park=True)
        yield PausableHome(home, pauses, client)


@pytest.fixture
def w(pausable_home: PausableHome) -> Iterator[PausableHome]:
    """A live session on the branch `w`, which was forked from the capture `base` and has changed since. At the end all
    sessions and names are removed, except those of `base`.
    """
    (live,) = pausable_home.client.fork("base", "w")
    live.exec("kill -KILL %1; wait %1")
    tell(live, "changed")
    yield pausable_home
    client = pausable_home.client
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


def check_after(w: PausableHome, transaction: Transaction, before: int, *, is_done: bool) -> None:
    """Check the session and the records after the command. If it was not done, do it again; then use what it made, and
    undo it.
    """
    client = w.client
    lives = not (is_done and transaction.ends) and (is_done or not transaction.dead)
    assert is_live(client, "w") == lives
    if lives:
        assert say(client, "w") == (transaction.becomes if is_done else transaction.was)
        check_terminal(w.home, "w")
    ledger.check(w.home)
    if not is_done:
        w.home.must(*transaction.argv)
        assert transaction.is_done(client)
    for name, said in transaction.made.items():
        if name == "new":
            client.fork(name, "again")
        now = say(client, "again" if name == "new" else name)
        assert now == said
    ledger.check(w.home)
    if transaction.argv[0] == "undo":
        (entry,) = client.history.operations(len(client.history.operations()) - before)
        assert entry.undoes is not None
        assert not entry.degraded
        w.home.must("undo", str(entry.number))
        assert not transaction.is_done(client)
        ledger.check(w.home)
        return
    done = {"checkpoint", "park", "fork", "restore", "end", "discard", "start", "gc"}
    operations = client.history.operations()
    assert {one.verb for one in operations[: len(operations) - before]} <= done
    if transaction.undone:
        undone = w.home.must("undo", "-b", "w")
        assert re.fullmatch(transaction.told, undone.stderr), undone
        now = say(client, "w")
        assert now == transaction.undone
        ledger.check(w.home)
