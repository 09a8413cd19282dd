"""When disk space runs short, the daemon removes captures without a name that undo does not need."""

import time

import pytest

from tests.homes import MIB, SMALL_POOL, Home
from tests.session import ledger
from tests.session.full_disks import Disk, leave
from tests.session.full_disks import small_disk as small_disk
from tests.session.test_full_home import crowd, gc_notes
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.soak(part="disks"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs"),
]

KEEP_S = 0.5
_PROGRAM = """import os
while open("/srv/go").read():
    x = os.urandom(40 << 20)
    open("/srv/ready", "w").close()"""
HOLD_MEMORY = f"mkfifo /srv/go /srv/ready; python3 -c '{_PROGRAM}' &"
REPLACE_MEMORY = "echo > /srv/go; cat /srv/ready"
"""Gives the program of HOLD_MEMORY 40 MiB of new memory, so that the store shares nothing between two captures."""
REMOVED = ["removed 3 captures"]


def age(since: float) -> None:
    wait_until(lambda: time.time() > since + KEEP_S, "the operations are older than keep_operations_s")


@pytest.mark.parametrize("small_disk", [Disk(), Disk(kind="btrfs")], indirect=True, ids=["in a file", "of the machine"])
def test_unneeded_captures_are_removed_when_the_disk_runs_short(small_disk: Home) -> None:
    client, kept = crowd(small_disk, KEEP_S)
    age(time.time())
    leave(small_disk, 200 * MIB)
    client.session("main").exec(
        "head -c 1M /dev/urandom | sha256sum"
    )  # the daemon checks the free space only while there are commands
    wait_until(lambda: bool(gc_notes(client)), "the daemon has removed captures", PATIENCE_S)
    assert gc_notes(client) == REMOVED
    assert client.fork(kept[0], "again")[0].exec("echo $kept").output == b"yes\n"
    ledger.check(small_disk)


NO_FLOOR = {**SMALL_POOL, "headroom_bytes": 64 * MIB, "floor_bytes": 0}
"""Without a floor, the daemon acts only when the disk is full."""


def crowd_disk(home: Home) -> None:
    """Leave less free space than a capture needs."""
    home.must("gc", "--keep-operations", "1h")
    leave(home, 20 * MIB)


def test_a_capture_without_space_is_repeated_after_captures_were_removed(small_disk: Home) -> None:
    client, kept = crowd(small_disk, KEEP_S, HOLD_MEMORY, REPLACE_MEMORY, pool=NO_FLOOR, hot_memory_bytes=0)
    age(time.time())
    crowd_disk(small_disk)
    client.session("main").checkpoint("more", tier="live", anew=True)
    assert gc_notes(client) == REMOVED
    assert {client.history.show(name).capture for name in ("x", "more")} > set(kept)
    assert client.fork("more", "again")[0].exec("echo $kept; jobs -rp | wc -l").output == b"yes\n1\n"
    ledger.check(small_disk)


def test_the_advice_for_a_capture_without_space_works(small_disk: Home) -> None:
    crowd(small_disk, 3600.0, HOLD_MEMORY, REPLACE_MEMORY, pool=NO_FLOOR, hot_memory_bytes=0)
    crowd_disk(small_disk)
    done = small_disk.cli("checkpoint", "more", "-b", "main", "--anew", "--tier", "live")
    assert (done.code, done.stdout) == (125, "")
    assert "'waypoint gc'; with --keep-operations 0 it also removes the captures for undo" in done.stderr
    small_disk.must("gc", "--keep-operations", "0")
    small_disk.must("checkpoint", "more", "-b", "main", "--anew", "--tier", "live")
    ledger.check(small_disk)
