"""What a home has taken of the disk it gives back, by what df and du of the machine say.

The sizes are small; WAYPOINT_TEST_GIVE_BACK=1 makes them those that real use was seen to reach, with the usual pool:
8 GB in captures and trees, 200 checkpoints of a process of 20 MB.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.homes import MIB, SMALL_POOL, Home, open_home
from tests.places import make_temp_root
from tests.session import ledger
from waypoint.client import Client, Session

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root", "overlay", "criu", "cgroup2", "btrfs")]

FULL = bool(os.environ.get("WAYPOINT_TEST_GIVE_BACK"))
FILE_MIB, CHECKPOINTS, FORKS = (1000, 200, 100) if FULL else (200, 5, 7)
STEP = 1024 * MIB if FULL else SMALL_POOL["step_bytes"]
SPARE = 16 * MIB
"""What a home that was used has more than a new one: names.db and its log, and the folder of captures."""
PATIENCE_S = 600.0 if FULL else 60.0


@pytest.fixture
def own() -> Iterator[Home]:
    within = make_temp_root() if FULL else None
    with open_home("back", within=within, settings={"hot_memory_bytes": 0}) as home:  # all is on the disk
        yield home


def disk_bytes(home: Home) -> int:
    """Files may go while it looks: then it says so, and adds up the others."""
    done = subprocess.run(["du", "-sx", "-B1", home.path], check=False, capture_output=True)
    return int(done.stdout.split()[0])


def store_bytes(home: Home) -> int:
    return sum(path.stat().st_size for path in (home.path / "store").rglob("*") if path.is_file())


def told(home: Home, what: str, empty: int, begun: float) -> None:
    """Print a figure."""
    print(f"{what}: {(disk_bytes(home) - empty) / MIB:.1f} MiB more than empty, {time.monotonic() - begun:.1f} s")


def clear(home: Home) -> dict[str, object]:
    """`gc` that keeps nothing for undo."""
    found: dict[str, object] = json.loads(
        home.must("gc", "--keep-operations", "0s", "--json", timeout_s=PATIENCE_S).stdout
    )
    assert found["failed"] == []
    return found


def grow(session: Session, name: str, process_mib: int = 10) -> None:
    """Write a file of FILE_MIB and have more memory, then name that."""
    command = f"head -c {FILE_MIB}M /dev/zero > /srv/{name}; sync; x=$x$(head -c {process_mib}M /dev/zero | tr '\\0' x)"
    session.exec(command, timeout_s=PATIENCE_S)
    session.checkpoint(name, tier="live")


@pytest.mark.timeout(60 + 2 * PATIENCE_S)
def test_a_home_from_which_all_was_removed_is_as_small_as_an_empty_one(own: Home) -> None:
    client, empty, begun = Client(own.path), disk_bytes(own), time.monotonic()
    main = client.start("main")
    names = [f"point-{number}" for number in range(3)]
    for name in names:
        grow(main, name)
    for name, fork in zip(names, client.fork("point-0", "a", "b", "c"), strict=True):
        grow(fork, f"later-{name}", process_mib=1)
    assert disk_bytes(own) > empty + 6 * FILE_MIB * MIB - 512 * MIB, "but for the room that a new pool has"
    client.session("a").exec("head -c 40M /dev/urandom > /srv/random", timeout_s=PATIENCE_S)
    own.must("checkpoint", "stored", "-b", "a", "--wait", timeout_s=PATIENCE_S)
    assert store_bytes(own) > 40 * MIB
    told(own, "full", empty, begun)
    own.must("stop", "--all", "--discard", timeout_s=PATIENCE_S)
    own.must("rm", "main", "a", "b", "c", "stored", *names, *(f"later-{name}" for name in names))
    clear(own)
    assert store_bytes(own) < 1 * MIB
    told(own, "after gc", empty, begun)
    assert disk_bytes(own) <= empty + SPARE
    assert client.start("main").exec("echo on").output == b"on\n"
    ledger.check(own)


@pytest.mark.timeout(60 + 2 * PATIENCE_S)
def test_checkpoints_hold_their_memory_as_long_as_they_have_a_name(own: Home) -> None:
    client, empty, begun = Client(own.path), disk_bytes(own), time.monotonic()
    main = client.start("main")
    program = 'import time; x = bytearray(b"x") * (20 << 20); open("/srv/ready", "w"); time.sleep(10000)'
    main.exec(f"mkfifo /srv/ready; python3 -c '{program}' & cat /srv/ready", timeout_s=PATIENCE_S)
    names = [f"point-{number}" for number in range(CHECKPOINTS)]
    for name in names:
        main.checkpoint(name, tier="live")
    assert disk_bytes(own) > empty + CHECKPOINTS * 20 * MIB
    told(own, f"{CHECKPOINTS} checkpoints", empty, begun)
    own.must("rm", *names[:-1], timeout_s=PATIENCE_S)
    clear(own)
    told(own, "one has a name", empty, begun)
    assert disk_bytes(own) <= empty + 40 * MIB + SPARE
    own.must("stop", "--all", "--discard")
    own.must("rm", "main", names[-1])
    clear(own)
    told(own, "none has", empty, begun)
    assert disk_bytes(own) <= empty + SPARE


@pytest.mark.timeout(60 + 2 * PATIENCE_S)
def test_forks_that_were_discarded_leave_nothing(own: Home) -> None:
    client = Client(own.path)
    main = client.start("main")
    main.checkpoint("origin", tier="live")
    discard_forks(client, "origin", 2)
    discard_forks(client, "main", 2)
    clear(own)
    before, begun = disk_bytes(own), time.monotonic()
    discard_forks(client, "origin", FORKS)
    told(own, f"{FORKS} forks of a checkpoint", before, begun)
    discard_forks(client, "main", FORKS)
    told(own, f"{FORKS} forks of a session", before, begun)
    clear(own)
    told(own, "after gc", before, begun)
    assert disk_bytes(own) <= before + 6 * MIB, "the log of names.db, which grows to 4 MiB"


def discard_forks(client: Client, origin: str, count: int) -> None:
    for _ in range(count):
        (fork,) = client.fork(origin, "copy")
        fork.exec("head -c 1M /dev/urandom > /srv/own")
        fork.stop(discard=True)


@pytest.mark.timeout(60 + 2 * PATIENCE_S)
def test_most_comes_back_while_sessions_live_and_go_on_being_captured(own: Home) -> None:
    """Three quarters of what was written is removed, spread over all of it."""
    client, empty = Client(own.path), disk_bytes(own)
    fill, live = client.start("fill"), client.start("live")
    for number in range(16):
        fill.exec(f"head -c {FILE_MIB // 4}M /dev/zero > /srv/data; sync", timeout_s=PATIENCE_S)
        fill.checkpoint(f"point-{number}", tier="live")
    fill.stop(discard=True)
    own.must("rm", "fill", *(f"point-{number}" for number in range(16) if number % 4))
    begun = time.monotonic()
    told(own, "filled", empty, begun)
    with own.background("gc", "--keep-operations", "0s") as gc:
        pauses: list[float] = []
        while gc.poll() is None:
            pauses.append(live.checkpoint("again", tier="live", force=True).paused_ms)
        assert gc.returncode == 0
    told(own, "after gc", empty, begun)
    alone = sorted(live.checkpoint("again", tier="live", force=True).paused_ms for _ in range(20))
    for when, found in (("meanwhile", sorted(pauses)), ("afterwards", alone)):
        print(f"{len(found)} checkpoints {when}: pause {found[len(found) // 2]:.0f} ms, at most {found[-1]:.0f} ms")
    assert disk_bytes(own) <= empty + FILE_MIB * MIB + 2 * STEP, "what has a name, the headroom, and a half-full chunk"
    assert [client.history.show(f"point-{number}").names for number in (0, 4, 8, 12)]
    (again,) = client.fork("point-4", "old")
    assert again.exec("stat -c %s /srv/data").output == f"{FILE_MIB // 4 * MIB}\n".encode()
