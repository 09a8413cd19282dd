"""A home that was filled up, disk and pool, comes out of it by the commands that free space."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.homes import MIB, Home
from tests.session import ledger
from tests.session.full_disks import SECONDS, SNUG, SNUG_POOL, Disk, fill, make_room, use_up_names
from tests.session.full_disks import small_disk as small_disk
from tests.session.test_strangers import stop_daemon
from tests.waiting import PATIENCE_S, wait_until
from waypoint.client import Client, wire
from waypoint.model.paths import socket_path

pytestmark = [
    pytest.mark.soak(part="disks"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs"),
]


KEEP_S = 0.5
FILL_S = 120.0  # all that the disk can hold is written, and the pool grows
snug = pytest.mark.parametrize("small_disk", [SNUG], indirect=True, ids=["snug"])


@pytest.fixture
def full(small_disk: Home) -> Home:
    """Full to the last block but for the reserve: three checkpoints, a session that has filled the pool, and a file
    beside the home. The daemon was killed.
    """
    client = Client(small_disk.path)
    main = client.start("main")
    main.exec("kept=yes; echo precious > /srv/kept; x=$(head -c 8M /dev/urandom | base64 -w0)")
    for name in ("one", "two", "three"):
        main.checkpoint(name, tier="live")
    fill(small_disk, reserve=True)  # first, so that the pool has not grown as far as it may
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


# In a small pool there may be no corner left in which a session can be started.
def test_a_full_pool_that_cannot_grow_can_be_emptied(small_disk: Home) -> None:
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
    step = "remove what is not needed ('waypoint rm', 'waypoint stop --discard') and run 'waypoint gc'"
    assert f"free some disk space, or {step}" in small_disk.cli("doctor").stdout
    small_disk.must("rm", "full")
    small_disk.must("gc", "--keep-operations", "0")
    assert client.session("main").exec("head -c 500M /dev/zero > /srv/more").exit == 0
    ledger.check(small_disk)


# The pool can grow when there is room.
@pytest.mark.parametrize("small_disk", [SNUG._replace(size_bytes=SNUG.size_bytes + 256 * MIB)], indirect=True)
def test_a_session_that_filled_the_home_can_be_stopped_and_started_later(full: Home) -> None:
    full.must("stop", "greedy")
    full.must("stop", "main")
    make_room(full)
    assert Client(full.path).start("main").exec("cat /srv/kept").output == b"precious\n"
    assert Client(full.path).start("greedy").exec("rm /srv/fill; echo > /srv/x").exit == 0
    ledger.check(full)


@pytest.mark.parametrize("small_disk", [Disk(files=300)], indirect=True)
@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_commands_that_free_space_work_without_a_free_inode(small_disk: Home, ends: str) -> None:
    """ext4 has room for so many files, and no more, however much space is free."""
    client = Client(small_disk.path)
    main = client.start("main")
    main.exec("kept=yes; echo precious > /srv/kept")
    taken = 0
    while small_disk.cli("checkpoint", "-b", "main", "--tier", "live", f"point-{taken}").code == 0:
        taken += 1
    use_up_names(small_disk)
    if ends == "stopped":
        small_disk.must("daemon", "stop")  # which takes away the files beside names.db
    else:
        stop_daemon(small_disk, kill=True)
    use_up_names(small_disk)
    small_disk.must("ps")
    small_disk.must("rm", *(f"point-{number}" for number in range(1, taken)))
    small_disk.must("stop", "main", "--discard")
    found = small_disk.must("gc", "--keep-operations", "0", "--json").json()
    assert (len(found["removed"]), found["failed"]) == (taken - 2, []), "all but what point-0 and main stand for"
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
@pytest.mark.parametrize("lives", [True, False], ids=["a session lives on them", "none lives"])
def test_the_daemon_removes_unneeded_captures_when_space_runs_out(small_disk: Home, *, lives: bool) -> None:
    client, kept = crowd(small_disk, keep_s=KEEP_S)
    if not lives:
        client.session("main").stop()
        kept.append(client.history.show("main").capture)
    made_at = time.time()
    wait_until(lambda: time.time() > made_at + KEEP_S, "what was done is older than what is kept")
    client.start("greedy").exec("head -c 5G /dev/zero > /srv/fill", timeout_s=FILL_S)
    wait_until(lambda: bool(said(client)), "it has made room", SECONDS)
    assert said(client) == ["removed 3 captures"], "those that no name stands for, and neither more nor twice"
    assert {one.capture for one in client.history.log(all=True) if not one.removed} == set(kept)
    assert client.history.show("x").capture == kept[0]
    client.session("greedy").stop(discard=True)
    # The kernel gets ten seconds to clean up, in which the session that writes keeps it busy.
    wait_until(lambda: "running" not in gc_jobs(small_disk), "what was removed is cleared away", PATIENCE_S)
    ledger.check(small_disk)
    assert client.fork("x", "again")[0].exec("echo $kept").output == b"yes\n"


@snug
def test_captures_that_undo_needs_are_kept_on_a_full_disk(small_disk: Home) -> None:
    client, _ = crowd(small_disk, keep_s=3600.0)
    before = [one.capture for one in client.history.log(all=True)]
    client.start("greedy").exec("head -c 5G /dev/zero > /srv/fill", timeout_s=FILL_S)
    wait_until(lambda: "done" in gc_jobs(small_disk), "it has looked for what could go", SECONDS)
    assert (small_disk.path / "pool.img").stat().st_size > SNUG_POOL["initial_bytes"], "it has grown up to the floor"
    found = os.statvfs(small_disk.path)
    assert -32 * MIB <= found.f_bavail * found.f_frsize - SNUG_POOL["floor_bytes"] < SNUG_POOL["step_bytes"] // 4
    assert said(client) == []
    assert [one.capture for one in client.history.log(all=True) if not one.removed] == before
    for _ in range(3):
        small_disk.must("undo", "-b", "main")
    assert client.history.show("x").capture == before[-1]


def crowd(home: Home, keep_s: float, program: str = ":", **settings: object) -> tuple[Client, list[str]]:
    """Four captures, of which one has a name; operations are kept for so long. The client, and what has a name.
    `program`: shell text that the session has run before. `settings`: of config.json, besides.
    """
    config = home.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "keep_operations_s": keep_s, **settings}))
    home.must("daemon", "stop")
    client = Client(home.path)
    main = client.start("main")
    main.exec(f"kept=yes; {program}")
    return client, [main.checkpoint("x", tier="live", force=True).capture for _ in range(4)][-1:]


def gc_jobs(home: Home) -> list[str]:
    """The states of the jobs that make room."""
    answer = wire.request(socket_path(str(home.path)), "GET", "/v1/jobs")
    assert isinstance(answer, dict)
    return [job["state"] for job in answer["jobs"] if job["kind"] == "gc"]


def said(client: Client) -> list[str]:
    """What was removed, by the log."""
    return [one.note.partition(",")[0] for one in client.history.operations() if one.verb == "gc"]
