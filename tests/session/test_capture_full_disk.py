"""Checkpoint, fork and restore work in a full pool. On a full disk they work or report it. The session continues."""

import contextlib
import os
import re
from collections.abc import Sequence

import pytest

from tests.advice import next_of
from tests.homes import MIB, Completed, Home
from tests.session import ledger
from tests.session.full_disks import Disk, fill, make_room
from tests.session.full_disks import small_disk as small_disk
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client, Session
from waypoint.model.errors import MAKE_ROOM, WaypointError

BTRFS_FREES_S = 60.0
"""The wait for free space: btrfs frees the space of removed files in the background, with a commit each 30 s."""

pytestmark = [
    pytest.mark.soak(part="disks"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs"),
]

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
TRANSACTIONS = [  # each with the state of the session after success; None: the state does not change
    (["checkpoint", "full"], None),
    (["checkpoint", "full-files", "--tier", "files"], None),
    (["checkpoint", "full-live", "--tier", "live"], None),
    (["fork", "before", "f1", "f2"], None),
    (["fork", "main", "f3"], None),
    (["restore", "before", "--only", "files"], REWOUND),
    (["restore", "before"], OLD),
]


def begin(home: Home) -> Session:
    """Start a session with the state OLD, make the checkpoint `before`, and change the state to CHANGED."""
    session = Client(home.path).start("main")
    session.exec("kept=old; echo old > /srv/kept; sleep 1000 &")
    session.checkpoint("before", tier="live")
    session.exec("kill -KILL %1; wait %1; kept=changed; echo changed > /srv/kept")
    return session


def check_refused(done: Completed) -> None:
    """Check that the error reports the full disk and says how to free space."""
    assert (done.code, done.stdout) == (125, ""), done
    assert done.stderr.startswith("waypoint: cannot "), done
    assert re.search(
        r"No space left on device\n  next: free some disk space(, or remove| there; no data is lost)", done.stderr
    )


def check_all(home: Home, session: Session, writers: Sequence[list[str]]) -> None:
    """Run all TRANSACTIONS, and check the states of the session and the forks. `writers`: the commands that may fail
    for lack of disk space; a failed command must report it and change nothing.
    """
    state = CHANGED
    for argv, becomes in TRANSACTIONS:
        done = home.cli(*argv)
        if argv in writers and done.code != 0:
            check_refused(done)
        else:
            assert done.code == 0, done
            assert "degraded" not in done.stderr
            state = becomes or state
        assert session.exec(LOOK).output == state, (argv, done)
        ledger.check(home)
        forks = [row.branch for row in Client(home.path).sessions() if row.branch != "main"]
        assert set(forks) == ({"f1", "f2", "f3"} & set(argv) if done.code == 0 else set())
        for branch in forks:
            fork = Client(home.path).session(branch)
            assert fork.exec(LOOK).output == (OLD if "before" in argv else state)
            fork.stop(discard=True)


def works_again(home: Home, session: Session) -> bool:
    """Return whether a checkpoint and a fork work. Some seconds pass until the space of removed files is free."""
    with contextlib.suppress(WaypointError):
        session.checkpoint("after", tier="live", force=True, anew=True)
        (copy,) = Client(home.path).fork("after", "copy")
        return copy.exec(LOOK).output == session.exec(LOOK).output
    return False


def test_files_are_restored_in_a_full_pool(small_disk: Home) -> None:
    """Another session has filled the pool: files that `main` removes leave no free space for its own restore."""
    client = Client(small_disk.path)
    main = client.start("main")
    main.exec("head -c 60M /dev/urandom > /srv/large; sha256sum /srv/large > /dev/shm/sum")
    main.checkpoint("before", tier="files")
    main.exec("head -c 60M /dev/urandom > /srv/large")
    assert b"No space left" in client.start("filler").exec(f"python3 -c '{FILL}'", timeout_s=PATIENCE_S).output
    small_disk.must("restore", "before", "-b", "main", "--only", "files")
    assert main.exec("sha256sum -c /dev/shm/sum").exit == 0


@pytest.mark.parametrize("small_disk", [Disk(3400 * MIB)], indirect=True)  # room for the pool to grow once
def test_a_full_pool_harms_no_session(small_disk: Home) -> None:
    session = begin(small_disk)
    assert session.run("python3", "-", stdin=FILL.encode()).stdout == b"No space left on device\n" * 3
    check_all(small_disk, session, [])
    session.exec("rm -f /srv/fill.*")
    wait_until(lambda: works_again(small_disk, session), "there is room again", BTRFS_FREES_S)


def test_a_full_disk_of_the_home_harms_no_session(small_disk: Home) -> None:
    session = begin(small_disk)
    fill(small_disk)
    # A record can still be written if it fits into blocks that names.db and its log already have.
    check_all(small_disk, session, [argv for argv, _ in TRANSACTIONS])
    make_room(small_disk)
    wait_until(lambda: works_again(small_disk, session), "there is room again")


def test_processes_that_fit_neither_memory_nor_disk_are_refused_until_there_is_room(small_disk: Home) -> None:
    small_disk.must("daemon", "stop")
    small_disk.must("setup", "--hot-memory", "1M")
    session = begin(small_disk)
    session.exec("large=$(head -c 60M /dev/urandom | base64 -w0); sum=$(md5sum <<<$large)")
    fill(small_disk)
    with (small_disk.path.parent / "fill").open("r+b") as file:
        file.truncate(os.fstat(file.fileno()).st_size - 40 * MIB)  # enough for everything but the processes
    refused = small_disk.cli("checkpoint", "large", "--tier", "live")
    assert (refused.code, "the memory for captures is too small, too" in refused.stderr) == (125, True), refused
    assert next_of(refused.stderr) == MAKE_ROOM
    make_room(small_disk)
    session.checkpoint("large", tier="live")
    (copy,) = Client(small_disk.path).fork("large", "copy")
    assert copy.exec('[ "$(md5sum <<<$large)" = "$sum" ] && echo same').output == b"same\n"
