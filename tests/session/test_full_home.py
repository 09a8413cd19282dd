"""In a home whose disk and pool are full, the commands that free space work."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.homes import MIB, Home
from tests.session import ledger
from tests.session.full_disks import DAEMON_WAIT_S, SNUG, SNUG_POOL, Disk, fill, make_room, use_up_inodes
from tests.session.full_disks import small_disk as small_disk
from tests.session.test_strangers import stop_daemon
from tests.upper.pool_homes import reserved_bytes
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client, wire
from waypoint.model.paths import socket_path

pytestmark = [
    pytest.mark.soak(part="disks"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs"),
]


KEEP_S = 0.5
FILL_S = 120.0  # the time to fill the whole disk while the pool grows
snug = pytest.mark.parametrize("small_disk", [SNUG], indirect=True, ids=["snug"])


@pytest.fixture
def full(small_disk: Home) -> Home:
    """A home whose disk and pool are full except for the home's reserve. It has three checkpoints, the session main, a
    session that has filled the pool, and no daemon: it was killed. Captures are written to the disk, not to memory.
    """
    small_disk.must("daemon", "stop")
    small_disk.must("setup", "--hot-memory", "1M")
    client = Client(small_disk.path)
    main = client.start("main")
    main.exec("kept=yes; echo precious > /srv/kept; x=$(head -c 8M /dev/urandom | base64 -w0)")
    for name in ("one", "two", "three"):
        main.checkpoint(name, tier="live", anew=True)
    fill(small_disk, reserve=True)  # before the pool is filled, so that the pool cannot grow
    client.start("greedy").exec("head -c 5G /dev/zero > /srv/fill; sync", timeout_s=FILL_S)
    stop_daemon(small_disk, kill=True)
    return small_disk


@snug
def test_commands_that_free_space_work_on_a_full_disk(full: Home) -> None:
    full.must("ps")
    full.must("rm", "two", "three")
    full.must("undo")
    full.must("rm", "two")
    full.must("stop", "greedy", "--discard")
    found = full.must("gc", "--keep-operations", "0", "--json").json()
    assert found["failed"] == []
    assert len(found["removed"]) == 1
    assert found["freed_bytes"] > 8 * MIB
    ledger.check(full)
    client = Client(full.path)
    assert client.fork("one", "again")[0].exec("echo $kept; cat /srv/kept").output == b"yes\nprecious\n"
    assert client.start("new").exec("echo new > /srv/new; cat /srv/new").output == b"new\n"


# With a smaller pool, there might be no space left to start a session.
def test_a_full_pool_that_cannot_grow_can_be_freed(small_disk: Home) -> None:
    client = Client(small_disk.path)
    main = client.start("main")
    main.exec("kept=yes; echo precious > /srv/kept")
    main.checkpoint("one", tier="live")
    assert main.exec("head -c 5G /dev/zero > /srv/fill", timeout_s=FILL_S).exit == 1
    main.checkpoint("full", tier="live")
    assert client.fork("one", "again")[0].exec("echo $kept; cat /srv/kept").output == b"yes\nprecious\n"
    client.start("new").stop()
    client.session("main").restore("one")
    assert client.session("main").exec("echo $kept; ls /srv").output == b"yes\nkept\n"
    step = "remove what you do not need ('waypoint rm', 'waypoint stop --discard') and run 'waypoint gc'"
    assert f"free some disk space, or {step}" in small_disk.cli("doctor").stdout
    small_disk.must("rm", "full")
    small_disk.must("gc", "--keep-operations", "0")
    assert client.session("main").exec("head -c 200M /dev/zero > /srv/more").exit == 0
    ledger.check(small_disk)


# Enough space that the pool can grow after `make_room`.
@pytest.mark.parametrize("small_disk", [SNUG._replace(size_bytes=SNUG.size_bytes + 256 * MIB)], indirect=True)
def test_a_session_that_filled_the_home_can_be_stopped_and_started_later(full: Home) -> None:
    full.must("stop", "--files", "greedy")
    full.must("stop", "--files", "main")
    make_room(full)
    assert Client(full.path).start("main").exec("cat /srv/kept").output == b"precious\n"
    assert Client(full.path).start("greedy").exec("rm /srv/fill; echo > /srv/x").exit == 0
    ledger.check(full)


@pytest.mark.parametrize("small_disk", [Disk(files=300)], indirect=True)
@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_commands_that_free_space_work_without_a_free_inode(small_disk: Home, ends: str) -> None:
    """The number of inodes of ext4 is fixed, so files cannot be created although space is free."""
    client = Client(small_disk.path)
    main = client.start("main")
    main.exec("kept=yes; echo precious > /srv/kept")
    taken = 0
    while small_disk.cli("checkpoint", "-b", "main", "--anew", "--tier", "live", f"point-{taken}").code == 0:
        taken += 1
    use_up_inodes(small_disk)
    if ends == "stopped":
        small_disk.must("daemon", "stop")  # removes the files beside names.db
    else:
        stop_daemon(small_disk, kill=True)
    use_up_inodes(small_disk)
    small_disk.must("ps")
    small_disk.must("rm", *(f"point-{number}" for number in range(1, taken)))
    small_disk.must("stop", "main", "--discard")
    found = small_disk.must("gc", "--keep-operations", "0", "--json").json()
    assert (len(found["removed"]), found["failed"]) == (taken - 2, []), "all captures but those of point-0 and main"
    assert client.fork("point-0", "again")[0].exec("echo $kept; cat /srv/kept").output == b"yes\nprecious\n"
    assert client.start("main").exec("cat /srv/kept").output == b"precious\n"
    client.session("main").checkpoint("new", tier="live")
    ledger.check(small_disk)


@snug
def test_the_reserve_is_filled_again_when_there_is_space(full: Home) -> None:
    full.must("rm", "one")
    assert reserve_bytes(full) < 32 * MIB
    make_room(full)
    full.must("rm", "two")
    assert reserve_bytes(full) >= 32 * MIB


def reserve_bytes(home: Home) -> int:
    return sum(piece.stat().st_blocks * 512 for piece in Path(home.path, "reserve").iterdir())


@snug
@pytest.mark.parametrize("lives", [True, False], ids=["with a session", "without a session"])
def test_the_daemon_removes_unneeded_captures_when_space_runs_out(small_disk: Home, *, lives: bool) -> None:
    client, kept = crowd(small_disk, keep_s=KEEP_S)
    if not lives:
        client.session("main").stop()
        kept.append(client.history.show("main").capture)
    made_at = time.time()
    wait_until(lambda: time.time() > made_at + KEEP_S, "the operations are older than keep_operations_s")
    client.start("greedy").exec("head -c 5G /dev/zero > /srv/fill", timeout_s=FILL_S)
    wait_until(lambda: bool(gc_notes(client)), "the daemon has removed captures", DAEMON_WAIT_S)
    assert gc_notes(client) == ["removed 3 captures"], "the daemon removed other captures than the unnamed ones"
    assert {one.capture for one in client.history.log(all=True) if not one.removed} == set(kept)
    assert client.history.show("x").capture == kept[0]
    client.session("greedy").stop(discard=True)
    wait_until(lambda: "running" not in gc_jobs(small_disk), "the gc has ended", PATIENCE_S)
    ledger.check(small_disk)
    assert client.fork("x", "again")[0].exec("echo $kept").output == b"yes\n"


@snug
def test_captures_that_undo_needs_are_kept_on_a_full_disk(small_disk: Home) -> None:
    client, _ = crowd(small_disk, keep_s=3600.0)
    before = [one.capture for one in client.history.log(all=True)]
    client.start("greedy").exec("head -c 5G /dev/zero > /srv/fill", timeout_s=FILL_S)
    wait_until(lambda: "done" in gc_jobs(small_disk), "the gc has ended", DAEMON_WAIT_S)
    assert reserved_bytes(small_disk.path / "pool.img") > SNUG_POOL["initial_bytes"], "the pool has not grown"
    found = os.statvfs(small_disk.path)
    assert -32 * MIB <= found.f_bavail * found.f_frsize - SNUG_POOL["floor_bytes"] < SNUG_POOL["step_bytes"] // 4
    assert gc_notes(client) == []
    assert [one.capture for one in client.history.log(all=True) if not one.removed] == before
    for _ in range(3):
        small_disk.must("undo", "-b", "main")
    assert client.history.show("x").capture == before[-1]


def crowd(
    home: Home, keep_s: float, program: str = ":", before_each: str = ":", **settings: object
) -> tuple[Client, list[str]]:
    """Make a session and four captures of it, and return a client and the id of the only named capture. `keep_s`: how
    long operations are kept. `program`, `before_each`: shell text that the session runs first, and before each
    capture. `settings`: more of config.json.
    """
    config = home.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "keep_operations_s": keep_s, **settings}))
    home.must("daemon", "stop")
    client = Client(home.path)
    main = client.start("main")
    main.exec(f"kept=yes; {program}")
    for _ in range(4):
        main.exec(before_each)
        taken = main.checkpoint("x", tier="live", force=True, anew=True).capture
    return client, [taken]


def gc_jobs(home: Home) -> list[str]:
    """Return the states of the gc jobs."""
    answer = wire.request(socket_path(str(home.path)), "GET", "/v1/jobs")
    assert isinstance(answer, dict)
    return [job["state"] for job in answer["jobs"] if job["kind"] == "gc"]


def gc_notes(client: Client) -> list[str]:
    """Return the notes of gc in the operation log, which name the removed captures."""
    return [one.note.partition(",")[0] for one in client.history.operations() if one.verb == "gc"]
