"""A home that was filled up, disk and pool, comes out of it by the commands that free space."""

import json
import time
from pathlib import Path

import pytest

from tests.homes import MIB, Home
from tests.session import ledger
from tests.session.full_disks import HOME_FITS, SECONDS, fill, make_room
from tests.session.full_disks import small_disk as small_disk
from tests.session.test_strangers import stop_daemon
from tests.waiting import wait_until
from waypoint.client import Client

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs")]


KEEP_S = 0.5


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
    client.start("greedy").exec("head -c 5G /dev/zero > /srv/fill; sync", timeout_s=120)
    stop_daemon(small_disk, kill=True)
    return small_disk


def test_what_frees_space_works_where_there_is_none(full: Home) -> None:
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


def test_from_a_pool_that_is_full_and_may_not_grow_there_is_a_way_back(small_disk: Home) -> None:
    client = Client(small_disk.path)
    main = client.start("main")
    main.exec("kept=yes; echo precious > /srv/kept")
    main.checkpoint("one", tier="live")
    assert main.exec("head -c 5G /dev/zero > /srv/fill", timeout_s=120).exit == 1
    main.checkpoint("full", tier="live")
    assert client.fork("one", "again")[0].exec("echo $kept; cat /srv/kept").output == b"yes\nprecious\n"
    client.start("new").stop()
    client.session("main").restore("one")
    assert client.session("main").exec("echo $kept; ls /srv").output == b"yes\nkept\n"
    small_disk.must("rm", "full")
    small_disk.must("gc", "--keep-operations", "0")
    assert client.session("main").exec("head -c 500M /dev/zero > /srv/more").exit == 0
    ledger.check(small_disk)


@pytest.mark.parametrize("small_disk", [HOME_FITS + 1024 * MIB], indirect=True)  # the pool can grow when there is room
def test_a_session_that_filled_the_home_is_stopped_and_goes_on_later(full: Home) -> None:
    full.must("stop", "greedy")
    full.must("stop", "main")
    make_room(full)
    assert Client(full.path).start("main").exec("cat /srv/kept").output == b"precious\n"
    assert Client(full.path).start("greedy").exec("rm /srv/fill; echo > /srv/x").exit == 0
    ledger.check(full)


def test_the_reserve_is_filled_again_when_there_is_room(full: Home) -> None:
    reserve = Path(full.path, "reserve")
    full.must("rm", "one")
    assert reserve.stat().st_blocks * 512 < 32 * MIB
    make_room(full)
    full.must("rm", "two")
    assert reserve.stat().st_blocks * 512 >= 32 * MIB


def test_the_daemon_makes_room_by_itself_and_says_so(small_disk: Home) -> None:
    config = small_disk.path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "keep_operations_s": KEEP_S}))
    small_disk.must("daemon", "stop")
    client = Client(small_disk.path)
    main = client.start("main")
    main.exec("kept=yes")
    kept = [main.checkpoint("x", tier="live", force=True).capture for _ in range(4)][-1]
    made_at = time.time()
    wait_until(lambda: time.time() > made_at + KEEP_S, "what was done is older than what is kept")
    client.start("greedy").exec("head -c 5G /dev/zero > /srv/fill", timeout_s=120)

    def said() -> list[str]:
        return [one.note for one in client.history.operations() if one.verb == "gc"]

    wait_until(lambda: bool(said()), "it has made room", SECONDS)
    assert said()[-1].startswith("removed 3 captures")
    assert [one.capture for one in client.history.log(all=True) if not one.removed] == [kept]
    assert client.history.show("x").capture == kept
    client.session("greedy").stop(discard=True)
    ledger.check(small_disk)
