"""Another program fills the disk while a session writes into the space that the pool has promised."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.homes import MIB, Home
from tests.session.full_disks import SNUG_POOL, Disk, fill, leave, make_room
from tests.session.full_disks import small_disk as small_disk
from tests.upper.pool_homes import reserved_bytes
from tests.waiting import wait_until
from waypoint.client import Client

pytestmark = [
    pytest.mark.soak(part="disks"),
    pytest.mark.privileged,
    pytest.mark.requires("root", "overlay", "cgroup2", "btrfs"),
]

WIDE = Disk(3072 * MIB, pool=SNUG_POOL)


def grab(home: Home) -> None:
    """Fill the disk, nearly all of it by one call. The session writes meanwhile, so the call can come too late."""
    for spared in (16, 64, 128, 256):
        with contextlib.suppress(OSError):
            leave(home, spared * MIB)
            break
    fill(home, more=True)


WAYS: dict[str, Callable[[Home], None]] = {"step by step": fill, "in one call": grab}
WRITERS = {
    "a stream": "dd if=/dev/zero of=/srv/data bs=1M; sync",
    "small files": "mkdir /srv/many; seq 50000 | while read n; do echo $n >/srv/many/$n || break; done; "
    "cat /dev/zero >/srv/data; sync",
}


@pytest.mark.parametrize("small_disk", [WIDE], indirect=True, ids=["wide"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("writer", WRITERS)
def test_the_session_gets_a_full_disk_and_the_pool_stays_writable(small_disk: Home, writer: str, way: str) -> None:
    session, image = Client(small_disk.path).start("main"), small_disk.path / "pool.img"
    session.exec("echo precious > /srv/kept; sync")
    for _ in range(2):
        with ThreadPoolExecutor(1) as threads:
            written = threads.submit(session.exec, WRITERS[writer], timeout_s=300)
            begun = reserved_bytes(image)
            wait_until(lambda before=begun: reserved_bytes(image) > before + 32 * MIB, "the session writes")
            WAYS[way](small_disk)
            output = written.result().output
        assert b"No space left on device" in output
        assert b"Input/output error" not in output
        assert b"Read-only" not in output
        make_room(small_disk)
        assert session.exec("rm -rf /srv/data* /srv/many; sync; cat /srv/kept").output == b"precious\n"
        wait_until(lambda: session.exec("echo more > /srv/more && sync").exit == 0, "the pool has grown again")
        rows = {row["capability"]: row for row in small_disk.cli("doctor", "--json").json()}
        assert "failed" not in rows["the pool of this home"]["why"]
