"""The outlook of a pool (its free space, growth and errors, which `waypoint doctor` reports), for each driver."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.upper.pool_homes import MIB, SIZES, PoolHome, fill, wait_for_no_loop
from waypoint.linux.storage import filesystem
from waypoint.model.errors import Failed
from waypoint.upper import pool_file
from waypoint.upper.contract import GrowthOutcome, Pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs", "overlay")]


def test_the_outlook_has_free_space_headroom_and_growth(pool: Pool, pool_home: PoolHome) -> None:
    before = filesystem.free_bytes(pool_home.home)
    found = pool.outlook()
    after = filesystem.free_bytes(pool_home.home)
    assert found.free_bytes > 0
    assert (found.is_readonly, found.errors) == (False, 0)
    if (pool_home.home / "pool.img").exists():
        assert (found.headroom_bytes, found.floor_bytes) == (SIZES.headroom_bytes, SIZES.floor_bytes)
        assert found.growth_bytes is not None
        left = found.growth_bytes + SIZES.floor_bytes
        assert min(before, after) - MIB < left <= max(before, after), "the growth does not match the free disk space"
    else:
        assert found.growth_bytes is None
    fill(f"{pool.create('one')}/filler")
    full = pool.outlook()
    assert full.free_bytes < min(found.free_bytes, 32 * MIB)
    pool.remove("one")


def test_a_read_only_pool_is_reported_and_refuses_writes(pool: Pool, pool_home: PoolHome) -> None:
    mounted = pool.folder if os.path.ismount(pool.folder) else str(pool_home.home)
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


def test_a_read_only_pool_file_opens_and_does_not_grow(corner: Path) -> None:
    pool, image = PoolHome(corner, "btrfs").open(), corner / "pool.img"
    Path(pool.create("one"), "data").write_bytes(b"kept")
    subprocess.run(["mount", "-o", "remount,ro", pool.folder], check=True)
    size = image.stat().st_size
    growth = pool.grow_if_needed(1024 * MIB)
    assert (growth.outcome, growth.said) == (GrowthOutcome.REFUSED, "its file system has become read-only")
    assert image.stat().st_size == size
    pool.seal("one")
    pool.remove("missing")
    again = PoolHome(corner, "btrfs").open()
    assert again.list() == ("one",)
    assert Path(again.path("one"), "data").read_bytes() == b"kept"
    pool.close()


def test_a_pool_file_that_fails_at_the_first_write_is_opened_read_only(
    corner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """btrfs becomes read-only this way if the same error occurs after each mount."""
    pool, image = PoolHome(corner, "btrfs").open(), corner / "pool.img"
    Path(pool.create("one"), "data").write_bytes(b"kept")
    pool.sync("one")
    pool.close()
    wait_for_no_loop(image)

    def fail(_fd: int, folder: str, _size: int) -> None:
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(pool_file, "extend", fail)
    again = PoolHome(corner, "btrfs").open()
    assert again.outlook().is_readonly
    assert Path(again.path("one"), "data").read_bytes() == b"kept"
    again.close()
