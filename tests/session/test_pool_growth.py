"""A program that writes in a session sees no full disk as long as the disk under the home has space.

The pools are small, so that a program can fill them within a second. With WAYPOINT_TEST_WRITE_GIB they have the
default size, and the steady writer writes that many GiB.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.homes import MIB, SMALL_POOL, Home, open_home
from tests.places import make_temp_root
from tests.session.full_disks import SNUG
from tests.session.full_disks import small_disk as small_disk
from tests.waiting import wait_until
from waypoint.client import Client, Session

pytestmark = [
    pytest.mark.soak(part="disks"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "btrfs", "cgroup2"),
]

WRITE_GIB = int(os.environ.get("WAYPOINT_TEST_WRITE_GIB", "0"))
FILL_MIB = 4096 if WRITE_GIB else 2 * SMALL_POOL["initial_bytes"] // MIB
"""Twice the size of a new pool."""
BYTES_PER_S, PIECE = 1_500_000_000, 7_500_000


@pytest.fixture
def fresh() -> Iterator[Home]:
    """A new home, whose pool has not grown yet."""
    with open_home("growth", within=make_temp_root() if WRITE_GIB else None) as home:
        yield home


def start(home: Home, branch: str = "main") -> Session:
    return Client(home.path).start(branch, cwd="/srv")


def write(session: Session, command: str, timeout_s: float = 120.0) -> None:
    """Run a command, and check that it succeeds without output."""
    done = session.exec(command, timeout_s=timeout_s)
    assert (done.output, done.exit) == (b"", 0)


def test_a_steady_writer_never_gets_a_full_disk(fresh: Home) -> None:
    mib = 1024 * WRITE_GIB or 2 * FILL_MIB
    write(start(fresh), f"dd if=/dev/zero of=data bs=1M count={mib} status=none", 10 + mib / 50)


def test_writers_of_several_sessions_have_space(fresh: Home) -> None:
    sessions = [start(fresh, branch) for branch in ("a", "b", "c")]
    command = f"dd if=/dev/zero of=data bs=1M count={FILL_MIB} status=none"
    with ThreadPoolExecutor(len(sessions)) as threads:
        for done in [threads.submit(write, session, command) for session in sessions]:
            done.result()


BURSTS = f"(sleep 2; for n in $(seq {FILL_MIB // 80 + 1}); do head -c 80M /dev/zero >>data || exit; sleep 0.3; done)"
PROGRAMS = {
    # Allocates space without writing: most disks are not that fast.
    "1.5 GB a second": f"""
with open("data", "w") as file:
    size = 0
    while size < {2 * FILL_MIB} << 20:
        os.posix_fallocate(file.fileno(), size, {PIECE})
        size += {PIECE}
        time.sleep({PIECE / BYTES_PER_S})
""",
    "through a map": f"""
with open("data", "w+b") as file:
    file.truncate({FILL_MIB} << 20)
    with mmap.mmap(file.fileno(), 0) as place:
        for n in range({FILL_MIB}):
            place[n << 20 : (n + 1) << 20] = bytes(1 << 20)
""",
    # Writes metadata: btrfs can run out of it while it has space for data.
    "small files": f"""
os.mkdir("many")
os.chdir("many")
for n in range({FILL_MIB * MIB // 80_000}):
    open(f"{{n}}", "w").close()
    for m in range(10):
        os.setxattr(f"{{n}}", f"user.{{m}}", bytes(3900))
""",
    "bursts": f"os.execvp('sh', ['sh', '-c', '{BURSTS}'])",
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_that_writes_after_a_rest_has_space(fresh: Home, kind: str) -> None:
    session = start(fresh)
    program = f"import mmap, os, time\ntime.sleep(2)\n{PROGRAMS[kind]}"
    session.run("sh", "-c", "cat >/srv/program.py", stdin=program.encode())
    write(session, "python3 program.py")


@pytest.mark.requires("criu")
def test_a_restore_of_large_files_makes_the_pool_grow(fresh: Home) -> None:
    """The daemon itself writes the files, while the session is frozen."""
    session = start(fresh)
    write(session, f"head -c {FILL_MIB}M /dev/zero >data && sync")
    session.checkpoint("large")
    write(session, "rm data && sync")
    fresh.must("restore", "large", "--only", "files")
    write(session, f"[ $(stat -c %s data) = {FILL_MIB << 20} ]")


@pytest.mark.requires("simple-quotas")
@pytest.mark.parametrize("small_disk", [SNUG], indirect=True)
def test_one_session_does_not_fill_the_pool_for_the_others(small_disk: Home) -> None:
    bad, worker = (start(small_disk, branch) for branch in ("bad", "worker"))
    write(bad, "head -c 16M /dev/urandom >kept && cp kept /dev/shm")
    bad.checkpoint("before", tier="files")
    write(bad, "rm kept")
    filled = bad.exec("while head -c 4M /dev/zero >>data; do sleep 0.1; done", timeout_s=120)
    assert b"Disk quota exceeded" in filled.output
    write(worker, "head -c 16M /dev/urandom >mine && sync mine")
    assert "each session may write" in small_disk.must("ps").stderr
    small_disk.must("restore", "before", "-b", "bad", "--only", "files")
    write(bad, "cmp kept /dev/shm/kept")
    bad.stop(discard=True)
    small_disk.must("rm", "--now", "bad")
    wait_until(lambda: Client(small_disk.path).status().share_bytes is None, "there is room again")
    write(worker, "head -c 150M /dev/zero >data")
