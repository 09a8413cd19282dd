"""Checkpoint, fork and restore where a disk is full: they work, or say so, and the session goes on."""

import contextlib

import pytest

from tests.homes import MIB, Completed, Home
from tests.session import ledger
from tests.session.full_disks import fill, make_room
from tests.session.full_disks import small_disk as small_disk
from tests.waiting import wait_until
from waypoint.client import Client, Session
from waypoint.model.errors import WaypointError

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs")]

TRANSACTIONS = [
    ["checkpoint", "full"],
    ["checkpoint", "full-files", "--tier", "files"],
    ["checkpoint", "full-live", "--tier", "live"],
    ["fork", "before", "f1", "f2"],
    ["fork", "main", "f3"],
    ["restore", "before", "--only", "files"],
    ["restore", "before"],
]


def begin(home: Home) -> Session:
    """A session with a variable, a program and a checkpoint."""
    session = Client(home.path).start("main")
    session.exec("kept=yes; echo precious > /srv/precious; sleep 1000 &")
    session.checkpoint("before", tier="live")
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
    """Try everything. Whatever comes of it, the session is what it was, or what was restored."""
    found = []
    for argv in TRANSACTIONS:
        done = home.cli(*argv)
        found.append(done)
        check_answer(done)
        assert session.exec("echo $kept; cat /srv/precious").output == b"yes\nprecious\n", argv
        ledger.check(home)
        for row in Client(home.path).sessions():
            if row.branch != "main":
                assert Client(home.path).session(row.branch).exec("echo $kept").output == b"yes\n"
                Client(home.path).session(row.branch).stop(discard=True)
    return found


def works_again(home: Home, session: Session) -> bool:
    """Space comes back some seconds after files were removed."""
    with contextlib.suppress(WaypointError):
        session.checkpoint("after", tier="live", force=True)
        (copy,) = Client(home.path).fork("after", "copy")
        return copy.exec("echo $kept").output == b"yes\n"
    return False


@pytest.mark.parametrize("small_disk", [3400 * MIB], indirect=True)  # room for the pool to grow once
def test_a_full_pool_harms_no_session(small_disk: Home) -> None:
    session = begin(small_disk)
    filled = session.exec(
        "n=0; for size in 64M 1M 4K; do while fallocate -l $size /srv/fill.$((n++)); do :; done; done"
    )
    assert b"No space left" in filled.output
    check_all(small_disk, session)
    session.exec("rm -f /srv/fill.*")
    wait_until(lambda: works_again(small_disk, session), "there is room again", 60.0)


def test_a_full_disk_under_the_home_harms_no_session(small_disk: Home) -> None:
    session = begin(small_disk)
    fill(small_disk)
    assert any(done.code for done in check_all(small_disk, session))
    make_room(small_disk)
    wait_until(lambda: works_again(small_disk, session), "there is room again")
