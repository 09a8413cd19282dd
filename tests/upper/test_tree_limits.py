"""Size limits of trees, for each driver that supports them."""

import contextlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.upper.pool_homes import MIB, PoolHome, operation_of, reserved_bytes, take_room, wait_for_no_loop
from tests.waiting import PATIENCE_S, wait_until
from waypoint.linux.storage import btrfs, mounts, quota
from waypoint.upper import pool_file
from waypoint.upper.contract import Pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs", "overlay")]


@pytest.mark.requires("simple-quotas")
def test_a_tree_is_limited_or_the_pool_reports_the_reason(pool: Pool, pool_home: PoolHome) -> None:
    for name in ("one", "other"):
        pool.create(name)
    why_not = pool.limit("one", 20 * MIB)
    if pool.driver == "copy" or pool_home.home.name == "btrfs":  # Waypoint enables no quotas on a btrfs of the host
        assert why_not.startswith("the pool consists of plain folders" if pool.driver == "copy" else "quotas are off")
        return
    assert why_not == ""
    assert 10 <= filled("one", pool) < 20
    assert filled("other", pool) == 30
    pool.snapshot("one", "copy")
    assert filled("copy", pool, "more") == 30
    os.unlink(f"{pool.path('one')}/data")
    pool.sync("one")
    pool.seal("one")
    assert 30 * MIB <= (pool.written_bytes("copy") or 0) < 31 * MIB
    assert pool.limits == {"one": 20 * MIB}
    assert pool.limit("copy", 16 * MIB) == ""
    with pytest.raises(OSError, match="quota"):  # the tree is already larger
        filled("copy", pool, "most")
    pool.seal("copy")  # works at the limit, too


@pytest.mark.requires("simple-quotas")
def test_in_a_pool_with_limits_a_compaction_moves_no_data(corner: Path) -> None:
    pool = PoolHome(corner, "btrfs").open()
    for number in range(4):
        take_room(pool, number, 100 * MIB)
    for number in range(3):
        pool.remove(f"tree-{number}")
    pool.settle()
    assert pool.why_stays() == ""
    assert pool.limit("tree-3", 200 * MIB) == ""
    image, end = corner / "pool.img", btrfs.end_of_chunks(pool.folder)
    before, spare = reserved_bytes(image), pool.spare_bytes()
    assert 16 * MIB <= pool.compact(lambda: True) == spare
    assert abs(before - spare - reserved_bytes(image)) <= MIB
    assert btrfs.end_of_chunks(pool.folder) == end
    pool.close()
    pool = PoolHome(corner, "btrfs").open()
    assert "a session has had a limit of disk space" in pool.why_stays()
    assert (pool.spare_bytes(), pool.compact(lambda: True)) == (0, 0)
    assert os.stat(f"{pool.path('tree-3')}/data").st_size == 100 * MIB
    pool.close()


@pytest.mark.requires("simple-quotas")
@pytest.mark.parametrize(
    ("operation", "sizes", "removed"),
    [
        pytest.param("resize", [100] * 16, range(12), id="data at the end"),
        pytest.param("balance", [40, 48] * 32, range(0, 64, 2), id="half-full chunks"),
    ],
)
def test_setting_a_limit_cancels_a_compaction(corner: Path, operation: str, sizes: list[int], removed: range) -> None:
    pool, present = PoolHome(corner, "btrfs").open(), operation_of(str(corner / "pool"))
    for number, size in enumerate(sizes):
        take_room(pool, number, size * MIB)
    for number in removed:
        pool.remove(f"tree-{number}")
    pool.settle()
    with ThreadPoolExecutor(1) as threads:
        given = threads.submit(pool.compact, lambda: True)
        wait_until(lambda: present() == operation, "data are moved", brief=True)
        assert pool.limit("tree-15", 200 * MIB) == ""
        assert present() == "none"
        before = os.stat(corner / "pool.img").st_size
        given.result()
    assert present() == "none"
    assert os.stat(corner / "pool.img").st_size == before
    pool.close()


@pytest.mark.requires("simple-quotas")
def test_a_balance_interrupted_by_a_crash_is_not_continued_in_a_pool_with_limits(
    corner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, present = PoolHome(corner, "btrfs").open(), operation_of(str(corner / "pool"))
    for number in range(4):
        take_room(pool, number, 100 * MIB)
    argv = ["btrfs", "balance", "start", "--full-balance", str(corner / "pool")]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as balance:
        wait_until(lambda: present() == "balance", "chunks are moved", brief=True)
        subprocess.run(["btrfs", "balance", "pause", str(corner / "pool")], check=True, stdout=subprocess.DEVNULL)
        balance.wait(PATIENCE_S)
    quota.enable(pool.folder)
    mounts.umount(pool.folder)
    wait_for_no_loop(corner / "pool.img")
    with monkeypatch.context() as patch:  # like a daemon killed after the mount
        patch.setattr(pool_file, "extend", lambda _fd, _folder, _size: None)
        PoolHome(corner, "btrfs").open()
    assert present() == "balance paused"
    pool = PoolHome(corner, "btrfs").open()
    assert present() == "none"
    said = subprocess.run(["btrfs", "balance", "status", pool.folder], capture_output=True, text=True, check=False)
    assert "No balance found" in said.stdout
    pool.close()


def filled(name: str, pool: Pool, file: str = "data") -> int:
    """Write up to 30 MiB into a new file of the tree; return the number of MiB written."""
    with open(f"{pool.path(name)}/{file}", "wb", buffering=0) as opened, contextlib.suppress(OSError):
        while opened.tell() < 30 * MIB:
            opened.write(bytes(MIB))
    return os.stat(f"{pool.path(name)}/{file}").st_size // MIB
