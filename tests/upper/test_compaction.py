"""Compaction makes the pool file of the driver `btrfs` smaller, by the space of removed trees."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.upper.pictures import furnish, picture
from tests.upper.pool_homes import (
    MIB,
    SIZES,
    PoolHome,
    check_btrfs,
    is_reserved,
    operation_of,
    reserved_bytes,
    take_room,
    used_bytes,
    wait_for_no_loop,
)
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.storage import btrfs, mounts
from waypoint.upper.contract import GrowthOutcome, Pool
from waypoint.upper.open_pool import open_pool

pytestmark = [pytest.mark.soak(part="disks"), pytest.mark.privileged, pytest.mark.requires("btrfs")]


def furnish_and_remove(pool: Pool) -> dict[str, object]:
    """Let the pool grow to five times its size, remove most of its trees, and return the content of the others."""
    for number in range(10):
        Path(pool.create(f"tree-{number}"), "data").write_bytes(os.urandom(100 * MIB))
        furnish(pool.path(f"tree-{number}") + "/odd")
        pool.snapshot(f"tree-{number}", f"copy-{number}", sealed=True)
        while pool.grow_if_needed(150 * MIB).outcome is GrowthOutcome.GROWN:
            pass
    for number in range(10):
        if number % 5:
            pool.remove(f"tree-{number}")
            pool.remove(f"copy-{number}")
    pool.settle()
    return {name: picture(pool.path(name)) for name in pool.list()}


def test_a_compaction_gives_the_space_of_removed_trees_back_to_the_disk(corner: Path) -> None:
    pool, image = PoolHome(corner, "btrfs").open(), corner / "pool.img"
    kept = furnish_and_remove(pool)
    before = image.stat()
    assert before.st_blocks * 512 > 1024 * MIB
    assert pool.spare_bytes() > 400 * MIB
    assert pool.compact(lambda: False) == 0, "compact has worked although a session lives"
    given = pool.compact(lambda: True)
    after = image.stat()
    assert abs((before.st_blocks - after.st_blocks) * 512 - given) <= MIB
    assert given > 400 * MIB, "too little space was given back"
    assert is_reserved(image)
    assert {name: picture(pool.path(name)) for name in pool.list()} == kept
    for name in kept:
        pool.remove(name)
    pool.compact(lambda: True)
    assert reserved_bytes(image) <= SIZES.initial_bytes + 16 * MIB
    assert (pool.spare_bytes(), pool.compact(lambda: True)) == (0, 0)
    Path(pool.create("new"), "data").write_bytes(os.urandom(64 * MIB))
    pool.close()
    wait_for_no_loop(image)
    assert "no error found" in check_btrfs(image)


def test_half_full_chunks_are_joined(corner: Path) -> None:
    pool, image = PoolHome(corner, "btrfs").open(), corner / "pool.img"
    for number in range(64):
        take_room(pool, number, (40, 48)[number % 2] * MIB)
    for number in range(0, 64, 2):
        pool.remove(f"tree-{number}")
    pool.compact(lambda: True)
    assert reserved_bytes(image) < used_bytes(pool.folder) + 512 * MIB
    pool.close()


@pytest.mark.parametrize("act", ["grow", "create", "close"])
def test_changing_the_pool_cancels_a_compaction(corner: Path, act: str) -> None:
    pool, operation = PoolHome(corner, "btrfs").open(), operation_of(str(corner / "pool"))
    for number in range(16):
        take_room(pool, number, 100 * MIB)
    for number in range(12):
        pool.remove(f"tree-{number}")
    with ThreadPoolExecutor(1) as threads:
        given = threads.submit(pool.compact, lambda: True)
        wait_until(lambda: operation() == "resize", "data at the end of the file are moved", brief=True)
        if act == "grow":
            assert pool.grow_if_needed(2048 * MIB).outcome is GrowthOutcome.GROWN
        elif act == "create":
            pool.create("new")
        else:
            pool.close()
        assert given.result() <= 512 * MIB, "the compaction was not cancelled"
    if act == "close":
        assert pool.compact(lambda: True) == 0, "a closed pool was compacted"
    else:
        assert operation() == "none"
        assert act == "grow" or pool.compact(lambda: True) > 0
        pool.close()


def test_a_compaction_keeps_the_headroom(corner: Path) -> None:
    pool = PoolHome(corner, "btrfs").open()
    furnish_and_remove(pool)
    assert pool.compact(lambda: True) > 0
    assert pool.grow_if_needed().outcome is GrowthOutcome.ENOUGH
    pool.close()


def test_a_crash_before_the_file_is_truncated_loses_nothing(corner: Path) -> None:
    pool, image = PoolHome(corner, "btrfs").open(), corner / "pool.img"
    kept = furnish_and_remove(pool)
    pool.close()
    wait_for_no_loop(image)
    size = image.stat().st_size
    pool = PoolHome(corner, "btrfs").open()
    btrfs.resize(pool.folder, size - 64 * MIB)
    mounts.umount(pool.folder)
    wait_for_no_loop(image)
    pool = PoolHome(corner, "btrfs").open()
    assert btrfs.space_on_device(pool.folder).total_bytes == size
    assert {name: picture(pool.path(name)) for name in pool.list()} == kept
    pool.close()


def test_an_opening_ends_a_balance_that_a_killed_daemon_has_left(corner: Path) -> None:
    pool, operation = PoolHome(corner, "btrfs").open(), operation_of(str(corner / "pool"))
    for number in range(6):
        pool.grow_if_needed(150 * MIB)
        Path(pool.create(f"tree-{number}"), "data").write_bytes(os.urandom(100 * MIB))
        pool.sync(f"tree-{number}")
    size = reserved_bytes(corner / "pool.img")
    argv = ["btrfs", "balance", "start", "--full-balance", str(corner / "pool")]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as balance:
        wait_until(lambda: operation() == "balance", "chunks are moved", brief=True)
        assert pool.grow_if_needed(1024 * MIB).outcome is GrowthOutcome.GROWN
        btrfs.cancel_balance(pool.folder)
        balance.wait(PATIENCE_S)
    assert reserved_bytes(corner / "pool.img") > size
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as balance:
        wait_until(lambda: operation() == "balance", "chunks are moved", brief=True)
        again = open_pool(corner, "btrfs", SIZES)
        assert again.list() == pool.list()
        assert operation() == "none"
        balance.wait(PATIENCE_S)
    pool.close()
