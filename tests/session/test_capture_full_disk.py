"""Checkpoint, fork and restore where a disk is full: they work, or say so, and the session goes on."""

import contextlib

import pytest

from tests.homes import MIB, Completed, Home
from tests.session import ledger
from tests.session.full_disks import Disk, fill, make_room
from tests.session.full_disks import small_disk as small_disk
from tests.waiting import wait_until
from waypoint.client import Client, Session
from waypoint.model.errors import WaypointError

BTRFS_FREES_S = 60.0
"""The kernel gives space back in the background, with a commit each 30 seconds."""

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs")]

FILL = """
import itertools, os
numbers = itertools.count()
for size in (64 << 20, 1 << 20, 4096):
    try:
        while True:
            with open(f"/srv/fill.{next(numbers)}", "wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        print(error.strerror)
"""
LOOK = "echo $kept; cat /srv/kept; jobs -rp | wc -l"
OLD, CHANGED, REWOUND = b"old\nold\n1\n", b"changed\nchanged\n0\n", b"changed\nold\n0\n"
TRANSACTIONS = [  # each with what the session becomes if it works; None: it stays what it was
    (["checkpoint", "full"], None),
    (["checkpoint", "full-files", "--tier", "files"], None),
    (["checkpoint", "full-live", "--tier", "live"], None),
    (["fork", "before", "f1", "f2"], None),
    (["fork", "main", "f3"], None),
    (["restore", "before", "--only", "files"], REWOUND),
    (["restore", "before"], OLD),
]


def begin(home: Home) -> Session:
    """A session with a variable, a file and a program, a checkpoint of them, and then other ones."""
    session = Client(home.path).start("main")
    session.exec("kept=old; echo old > /srv/kept; sleep 1000 &")
    session.checkpoint("before", tier="live")
    session.exec("kill -KILL %1; wait %1; kept=changed; echo changed > /srv/kept")
    return session


def check_answer(done: Completed) -> None:
    """It has worked, or says that the disk is full, or that a part is missing."""
    if done.code == 0:
        return
    assert done.code == 125, done
    assert done.stdout == ""
    assert done.stderr.startswith("waypoint: cannot "), done
    assert "\n  next: " in done.stderr, done
    assert "No space left on device" in done.stderr or "disk is full" in done.stderr, done


def check_all(home: Home, session: Session) -> list[Completed]:
    """Try everything. Whatever comes of it, the session is what it was, or what was restored, and a fork is whole."""
    found, state = [], CHANGED
    for argv, becomes in TRANSACTIONS:
        done = home.cli(*argv)
        found.append(done)
        check_answer(done)
        if done.code == 0:
            state = becomes or state
        assert session.exec(LOOK).output == state, (argv, done)
        ledger.check(home)
        forks = [row.branch for row in Client(home.path).sessions() if row.branch != "main"]
        assert set(forks) == ({"f1", "f2", "f3"} & set(argv) if done.code == 0 else set())
        for branch in forks:
            fork = Client(home.path).session(branch)
            assert fork.exec(LOOK).output == (OLD if "before" in argv else state)
            fork.stop(discard=True)
    return found


def works_again(home: Home, session: Session) -> bool:
    """Space comes back some seconds after files were removed."""
    with contextlib.suppress(WaypointError):
        session.checkpoint("after", tier="live", force=True)
        (copy,) = Client(home.path).fork("after", "copy")
        return copy.exec(LOOK).output == session.exec(LOOK).output
    return False


@pytest.mark.parametrize("small_disk", [Disk(3400 * MIB)], indirect=True)  # room for the pool to grow once
def test_a_full_pool_harms_no_session(small_disk: Home) -> None:
    session = begin(small_disk)
    assert session.run("python3", "-", stdin=FILL.encode()).stdout == b"No space left on device\n" * 3
    check_all(small_disk, session)
    session.exec("rm -f /srv/fill.*")
    wait_until(lambda: works_again(small_disk, session), "there is room again", BTRFS_FREES_S)


def test_a_full_disk_under_the_home_harms_no_session(small_disk: Home) -> None:
    session = begin(small_disk)
    fill(small_disk)
    assert any(done.code for done in check_all(small_disk, session))
    make_room(small_disk)
    wait_until(lambda: works_again(small_disk, session), "there is room again")
