"""What is done with captures in the store, with the steps that each passes, and what holds after each."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.homes import MIB, Home
from tests.processes_now import processes, words_of
from tests.session import ledger
from tests.session.pauses import Pauses
from tests.session.transactions import is_name
from tests.waiting import PATIENCE_S, wait_until
from waypoint.capture.steps import StoreStep
from waypoint.client import Client
from waypoint.model.errors import UnknownName
from waypoint.model.ids import is_id
from waypoint.store.content.write_steps import WriteStep

COMPACTING = (WriteStep.COPIED, WriteStep.RETIRED, WriteStep.REMOVED)
WRITING = tuple(step for step in WriteStep if step not in COMPACTING)
BY_DAEMON = (StoreStep.BROUGHT, StoreStep.HOT_IN_PLACE, StoreStep.FILES_GONE, StoreStep.INSPECTED, StoreStep.SHARED)
"""The steps at which the daemon itself stands."""


@dataclass(frozen=True)
class StoreGround:
    """A home with the live session `w`, and the checkpoint `base` of it in the store. `files`: a folder of the test's,
    with `away`, the export of a checkpoint that the home does not have.
    """

    home: Home
    pauses: Pauses
    client: Client
    files: Path

    def said(self, name: str) -> str:
        return self.home.must("cat", f"{name}:/srv/mark").stdout

    def write(self, mark: str, size: int = 200_000) -> None:
        """Have the session write what no store has."""
        done = self.client.session("w").exec(f"echo {mark} > /srv/mark; head -c {size} /dev/urandom > /srv/new")
        assert done.exit == 0

    def orphans(self) -> list[int]:
        """The programs that have worked for a daemon that is dead."""
        daemon, ours = self.client.status().pid, self.pauses.env["WAYPOINT_PAUSE_AT"]
        return [one.pid for one in processes() if one.parent != daemon and ours in words_of(one.pid)]

    def packs_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.home.path / "store/packs").iterdir())


@dataclass(frozen=True)
class Work:
    """`argv`: the command. `steps`: those that it passes. `prepare`: makes what it works on. `is_done`: whether the new
    state is there. `made`: the names that are there once it is done, with what is in their /srv/mark. `had`: so
    before. `again`: the command that does it if the first one has failed.
    """

    argv: tuple[str, ...]
    steps: tuple[StoreStep | WriteStep, ...]
    prepare: Callable[[StoreGround], object]
    is_done: Callable[[StoreGround], bool]
    made: tuple[tuple[str, str], ...] = ()
    again: tuple[str, ...] = ()


def _garbage(ground: StoreGround) -> None:
    """A pack of which a later image needs little."""
    session = ground.client.session("w")
    assert session.exec("head -c 1M /dev/urandom > /srv/kept").exit == 0
    ground.write("live", 8 * MIB)
    ground.home.must("checkpoint", "gone", "-b", "w", "--tier", "files", "--wait")
    assert session.exec("rm /srv/new").exit == 0
    ground.home.must("checkpoint", "new", "-b", "w", "--tier", "files", "--wait")
    ground.home.must("rm", "gone")


def _has_layer(ground: StoreGround, name: str) -> bool:
    try:
        return [one.kind for one in ground.client.layers.list(name)] == ["trace"]
    except UnknownName:
        return False


def _is_durable(ground: StoreGround, name: str) -> bool:
    return is_name(ground.client, name) and ground.client.history.show(name).durable


NEW = ("checkpoint", "new", "-b", "w", "--tier", "files")
WORKS = {
    "recall": Work(
        ("cat", "base:/srv/mark"),
        (StoreStep.BROUGHT_ONE, StoreStep.BROUGHT, StoreStep.HOT_IN_PLACE),
        prepare=lambda ground: ground.home.must("evict", "base"),
        is_done=lambda ground: ground.said("base") == "one\n",
    ),
    "evict": Work(
        ("evict", "base"),
        (StoreStep.FILES_GONE,),
        prepare=lambda ground: ground.said("base"),
        is_done=lambda ground: True,
    ),
    "put": Work(
        (*NEW, "--wait"),
        WRITING,
        prepare=lambda ground: ground.write("live"),
        is_done=lambda ground: _is_durable(ground, "new"),
        made=(("new", "live"),),
        again=(*NEW, "--wait", "--force"),
    ),
    "import": Work(
        ("import", "{files}/away", "--as", "came"),
        (StoreStep.INSPECTED, *WRITING),
        prepare=lambda ground: ground.home.must("gc", "--keep-operations", "0"),  # so that the store has nothing of it
        is_done=lambda ground: is_name(ground.client, "came"),
        made=(("came", "away"),),
    ),
    "attach": Work(
        ("layer", "attach", "new", "trace={files}/trace"),
        (StoreStep.ATTACHED_ONE, StoreStep.SHARED),
        prepare=lambda ground: (ground.write("live"), ground.home.must(*NEW)),
        is_done=lambda ground: _has_layer(ground, "new"),
        made=(("new", "live"),),
    ),
    "checkpoint-attach": Work(
        (*NEW, "--attach", "trace={files}/trace"),
        (StoreStep.ATTACHED_ONE,),
        prepare=lambda ground: ground.write("live"),
        is_done=lambda ground: _has_layer(ground, "new"),
        made=(("new", "live"),),
    ),
    "gc": Work(
        ("gc", "--keep-operations", "0"),
        (StoreStep.FILES_GONE, *COMPACTING),
        prepare=_garbage,
        is_done=lambda ground: ground.packs_bytes() < 6 * MIB,
        made=(("new", "live"),),
    ),
    "export": Work(
        ("export", "base", "{files}/out/base", "--force"),
        (StoreStep.SENT_ONE,),
        prepare=lambda ground: None,
        is_done=lambda ground: (ground.files / "out/base").exists(),
    ),
}


def left_over(ground: StoreGround) -> list[str]:
    """What of the work is left in the home besides its end."""
    home = ground.home
    found = [str(path) for path in (home.path / "store/tmp").iterdir()]
    found += [str(path) for path in (home.path / "hot").iterdir() if is_id(path.name[1:])]
    found += [str(path) for path in (ground.files / "out").iterdir() if path.name != "base"]
    return found + [f"program {pid}" for pid in ground.orphans()]


def check_after(ground: StoreGround, work: Work, *, is_done: bool, may_come: bool = False) -> None:
    """What names stand for is there; it can be done again; and the next one comes into the store. `may_come`: it may
    be done yet.
    """
    home, client = ground.home, ground.client
    if not is_done:
        again = home.cli(*worded(ground, work.again or work.argv))
        assert again.code == 0 or may_come, again.stderr
        if may_come:  # what goes on without its client keeps others from the same meanwhile
            wait_until(lambda: work.is_done(ground), "it is done", PATIENCE_S)
        assert work.is_done(ground)
    home.must("checkpoint", "next", "-b", "w", "--tier", "files", "--wait")
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not left_over(ground), "nothing is left")
    assert not left_over(ground), "\n".join(left_over(ground))
    assert client.disk.verify(read_data=True).problems == []
    client.disk.evict(all=True)
    for name, mark in {"base": "one", **dict(work.made)}.items():
        assert ground.said(name) == f"{mark}\n", name
    (again,) = client.fork("base", "again")
    assert again.exec("echo $kept; cat /srv/mark").output == b"yes\none\n"
    again.stop(discard=True)
    ledger.check(home)


def worded(ground: StoreGround, argv: tuple[str, ...]) -> list[str]:
    return [word.format(files=ground.files) for word in argv]


def clean(ground: StoreGround) -> None:
    """Only `base` is left."""
    (ground.files / "out/base").unlink(missing_ok=True)
    names = {name for capture in ground.client.history.log(all=True) for name in capture.names}
    names |= {row.name for row in ground.client.history.branches()}
    if gone := names - {"base", "w"}:
        ground.client.history.remove(*gone)


def files_for(ground: StoreGround) -> None:
    """Make what the works need."""
    os.mkdir(ground.files / "out")
    (ground.files / "trace").write_bytes(os.urandom(50_000))
    ground.write("away")
    ground.home.must(*NEW, "--wait")
    ground.home.must("export", "new", "--alone", str(ground.files / "away"))
    clean(ground)
    ground.home.must("gc", "--keep-operations", "0")
    ground.write("live")
