"""A pool is whole after a process that worked on it was killed."""

import shutil
from pathlib import Path

import pytest

from tests.upper.pictures import furnish, picture
from tests.upper.pool_homes import PoolHome, check_btrfs, loops_of, reserved_bytes, wait_for_no_loop
from tests.upper.victims import duration, kill_after, leftovers, started
from waypoint.linux.storage import btrfs, mounts

pytestmark = [pytest.mark.soak(part="faults"), pytest.mark.privileged, pytest.mark.requires("btrfs")]

TRIES = 12


def forget_pool(home: Path) -> None:
    (home / "pool.img").unlink(missing_ok=True)
    shutil.rmtree(home / "pool")


def test_a_pool_can_be_made_after_a_killed_attempt(pool_home: PoolHome) -> None:
    whole_s = duration("make", pool_home)
    for number in range(TRIES):
        forget_pool(pool_home.home)
        kill_after("make", pool_home, whole_s * number / TRIES)
        pool = pool_home.open()
        assert pool.list() == ()
        Path(pool.create("one"), "file").write_text("content")
        pool.close()
        again = pool_home.open()
        assert Path(again.path("one"), "file").read_text() == "content"
        assert leftovers(pool_home.home) == []
        again.close()


def test_killed_snapshots_and_removals_leave_whole_trees_only(pool_home: PoolHome) -> None:
    pool = pool_home.open()
    furnish(pool.create("source"))
    before = picture(pool.path("source"))
    pool.close()
    for number in range(TRIES):
        kill_after("turn_over", pool_home, 0.003 * number)
        pool = pool_home.open()
        names = pool.list()
        assert "source" in names
        assert all(picture(pool.path(name)) == before for name in names)
        assert leftovers(pool_home.home) == []
        for name in set(names) - {"source"}:
            pool.remove(name)
        pool.close()


def test_a_killed_growth_is_completed_at_the_next_opening(corner: Path) -> None:
    pool_home = PoolHome(corner, "btrfs")
    pool = pool_home.open()
    furnish(pool.create("one"))
    before = picture(pool.path("one"))
    pool.close()
    image, sizes = corner / "pool.img", []
    for number in range(10 * TRIES):
        if number >= TRIES and sizes[-1] > sizes[0]:  # on a busy machine, all first kills may come before the growth
            break
        kill_after("grow", pool_home, 0.002 * number)
        wait_for_no_loop(image)
        pool = pool_home.open()
        total, end = btrfs.space_on_device(pool.folder).total_bytes, btrfs.end_of_chunks(pool.folder)
        assert end <= total <= image.stat().st_size
        assert end <= reserved_bytes(image)
        assert picture(pool.path("one")) == before
        sizes.append(reserved_bytes(image))
        mounts.umount(pool.folder)
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]
    wait_for_no_loop(image)
    assert "no error found" in check_btrfs(image)


def test_killing_the_only_user_leaves_no_mount_and_no_loop_device(corner: Path) -> None:
    pool_home = PoolHome(corner, "btrfs")
    pool = pool_home.open()
    pool.create("one")
    pool.close()
    with started("hold", pool_home):
        assert len(loops_of(corner / "pool.img")) == 1
    wait_for_no_loop(corner / "pool.img")


def test_a_pool_in_use_by_a_session_is_opened_without_a_second_loop_device(corner: Path) -> None:
    home, moved = corner / "home", corner / "moved"
    home.mkdir()
    pool_home = PoolHome(home, "btrfs")
    pool = pool_home.open()
    pool.create("one")
    pool.close()
    with started("hold", pool_home) as session:
        first = loops_of(home / "pool.img")
        assert len(first) == 1
        home.rename(moved)  # the same file has another name now
        again = PoolHome(moved, "btrfs").open()
        assert loops_of(moved / "pool.img") == first
        assert again.list() == ("one",)
        session.communicate(b"written by the session\n")
        assert Path(again.path("one"), "held").read_text() == "written by the session\n"
        again.close()
    wait_for_no_loop(moved / "pool.img")
    assert "no error found" in check_btrfs(moved / "pool.img")


def test_a_copied_home_has_an_independent_pool(corner: Path) -> None:
    (corner / "home").mkdir()
    pool = PoolHome(corner / "home", "btrfs").open()
    Path(pool.create("one"), "file").write_text("content")
    pool.close()
    shutil.copytree(corner / "home", corner / "copy")
    copy = PoolHome(corner / "copy", "btrfs").open()
    copy.remove("one")
    copy.close()
    pool = PoolHome(corner / "home", "btrfs").open()
    assert Path(pool.path("one"), "file").read_text() == "content"
    pool.close()
