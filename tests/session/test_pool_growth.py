"""Whoever writes in a session sees no full disk as long as the disk under the home has room.

The pools are small, so that a second of writing is more than they have. With WAYPOINT_TEST_WRITE_GIB they have the
usual size, and the steady writer writes as much.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.homes import MIB, SMALL_POOL, Home, open_home
from tests.places import make_temp_root
from waypoint.client import Client, Session

pytestmark = [
    pytest.mark.soak(part="disks"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "btrfs", "cgroup2"),
]

WRITE_GIB = int(os.environ.get("WAYPOINT_TEST_WRITE_GIB", "0"))
FILL_MIB = 4096 if WRITE_GIB else 2 * SMALL_POOL["initial_bytes"] // MIB
"""Twice as much as a new pool has."""
BYTES_PER_S, PIECE = 1_500_000_000, 7_500_000


@pytest.fixture
def fresh() -> Iterator[Home]:
    """A home whose pool has not grown yet."""
    with open_home("growth", within=make_temp_root() if WRITE_GIB else None) as home:
        yield home


def start(home: Home, branch: str = "main") -> Session:
    return Client(home.path).start(branch, cwd="/srv")


def write(session: Session, command: str, timeout_s: float = 120.0) -> None:
    """Run a command that says nothing unless it fails."""
    done = session.exec(command, timeout_s=timeout_s)
    assert (done.output, done.exit) == (b"", 0)


def test_a_steady_writer_never_meets_a_full_disk(fresh: Home) -> None:
    mib = 1024 * WRITE_GIB or 2 * FILL_MIB
    write(start(fresh), f"dd if=/dev/zero of=data bs=1M count={mib} status=none", 10 + mib / 50)


def test_a_writer_of_one_and_a_half_gigabytes_a_second_has_room(fresh: Home) -> None:
    """No disk writes that fast here: the writer takes the room without content, at this speed, after a rest."""
    program = f"""
import os, time
time.sleep(2)
with open("data", "w") as file:
    size = 0
    while size < {2 * FILL_MIB} << 20:
        os.posix_fallocate(file.fileno(), size, {PIECE})
        size += {PIECE}
        time.sleep({PIECE / BYTES_PER_S})
"""
    write(start(fresh), f"python3 -c '{program}'")


def test_writers_of_several_sessions_share_the_room(fresh: Home) -> None:
    sessions = [start(fresh, branch) for branch in ("a", "b", "c")]
    command = f"dd if=/dev/zero of=data bs=1M count={FILL_MIB} status=none"
    with ThreadPoolExecutor(len(sessions)) as threads:
        for done in [threads.submit(write, session, command) for session in sessions]:
            done.result()


def test_a_program_that_wakes_up_after_a_rest_and_says_nothing_has_room(fresh: Home) -> None:
    """A download, say: while it waits, nothing happens in any session."""
    bursts = FILL_MIB // 80 + 1
    write(
        start(fresh), f"(sleep 2; for n in $(seq {bursts}); do head -c 80M /dev/zero >>data || exit; sleep 0.3; done)"
    )


def test_a_program_that_writes_through_a_map_after_a_rest_has_room(fresh: Home) -> None:
    program = f"""
import mmap, time
time.sleep(2)
with open("data", "w+b") as file:
    file.truncate({FILL_MIB} << 20)
    with mmap.mmap(file.fileno(), 0) as place:
        for n in range({FILL_MIB}):
            place[n << 20 : (n + 1) << 20] = bytes(1 << 20)
"""
    write(start(fresh), f"python3 -c '{program}'")


def test_what_small_files_take_is_there_too(fresh: Home) -> None:
    """It is metadata, of which btrfs can run out while there is room for data."""
    program = f"""
import os, time
time.sleep(2)
for n in range({FILL_MIB * MIB // 80_000}):
    open(f"{{n}}", "w").close()
    for m in range(10):
        os.setxattr(f"{{n}}", f"user.{{m}}", bytes(3900))
"""
    write(start(fresh), f"mkdir many && cd many && python3 -c '{program}'")


@pytest.mark.requires("criu")
def test_bringing_large_files_back_makes_room_for_them(fresh: Home) -> None:
    """The daemon writes them itself, while the session stands still."""
    session = start(fresh)
    write(session, f"head -c {FILL_MIB}M /dev/zero >data && sync")
    session.checkpoint("large")
    write(session, "rm data && sync")
    fresh.must("restore", "large", "--only", "files")
    write(session, f"[ $(stat -c %s data) = {FILL_MIB << 20} ]")
