"""How a pool says that it stands, on each driver: what `waypoint doctor` tells of it."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.upper.grounds import MIB, SIZES, Ground, fill, wait_for_no_loop
from tests.waiting import wait_until
from waypoint.linux.storage import filesystem
from waypoint.model.errors import Failed
from waypoint.upper import pool_image
from waypoint.upper.contract import GrowthOutcome, Pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs", "overlay")]


def test_it_tells_how_it_stands(pool: Pool, ground: Ground) -> None:
    found = pool.outlook()
    assert found.free_bytes > 0
    assert (found.is_readonly, found.errors) == (False, 0)
    if (ground.home / "pool.img").exists():
        assert (found.headroom_bytes, found.floor_bytes) == (SIZES.headroom_bytes, SIZES.floor_bytes)

        def is_told() -> bool:  # others use the disk, too
            before = filesystem.free_bytes(ground.home)
            growth = pool.outlook().growth_bytes
            after = filesystem.free_bytes(ground.home)
            assert growth is not None
            return min(before, after) - MIB < growth + SIZES.floor_bytes <= max(before, after)

        wait_until(is_told, "it tells by how much it could grow")
    else:
        assert found.growth_bytes is None
    fill(f"{pool.create('one')}/filler")
    full = pool.outlook()
    assert full.free_bytes < min(found.free_bytes, 32 * MIB)
    pool.remove("one")


def test_it_tells_that_it_has_become_read_only(pool: Pool, ground: Ground) -> None:
    mounted = pool.folder if os.path.ismount(pool.folder) else str(ground.home)
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    try:
        assert pool.outlook().is_readonly
        assert not pool.outlook().is_short
        with pytest.raises(Failed, match=r"[Rr]ead-only"):
            pool.check_writable()
        with pytest.raises(Failed, match="Read-only"):
            pool.create("one")
        pool.settle()
    finally:
        subprocess.run(["mount", "-o", "remount,rw", mounted], check=True)
    pool.check_writable()


def test_a_file_that_has_become_read_only_is_opened_and_does_not_grow(corner: Path) -> None:
    pool, image = Ground(corner, "btrfs").open(), corner / "pool.img"
    Path(pool.create("one"), "data").write_bytes(b"kept")
    subprocess.run(["mount", "-o", "remount,ro", pool.folder], check=True)
    size = image.stat().st_size
    growth = pool.grow_if_needed(1024 * MIB)
    assert (growth.outcome, growth.said) == (GrowthOutcome.REFUSED, "its file system has become read-only")
    assert image.stat().st_size == size
    pool.seal("one")
    pool.remove("missing")
    again = Ground(corner, "btrfs").open()
    assert again.list() == ("one",)
    assert Path(again.path("one"), "data").read_bytes() == b"kept"
    pool.close()


def test_a_file_that_fails_when_it_is_first_written_is_opened_to_be_read(
    corner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As btrfs does where it meets the same error again whenever it is mounted."""
    pool, image = Ground(corner, "btrfs").open(), corner / "pool.img"
    Path(pool.create("one"), "data").write_bytes(b"kept")
    pool.sync("one")
    pool.close()
    wait_for_no_loop(image)

    def fail(_fd: int, folder: str) -> None:
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(pool_image, "use_whole_file", fail)
    again = Ground(corner, "btrfs").open()
    assert again.outlook().is_readonly
    assert Path(again.path("one"), "data").read_bytes() == b"kept"
    again.close()
