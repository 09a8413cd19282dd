"""A process that is killed in the middle of its work on a pool: what the next one finds.

WAYPOINT_TEST_CRASHES: at how many moments it is killed.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.upper.grounds import Ground, check_btrfs, loops_of, wait_for_no_loop
from tests.upper.pictures import furnish, picture
from tests.upper.victims import duration, kill_after, leftovers, started
from waypoint.linux.snapshots import btrfs

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs")]

TRIES = int(os.environ.get("WAYPOINT_TEST_CRASHES", "4"))
TURNOVER_S, GROWTH_S = 0.036, 0.024
"""About how long the work takes whose moments these are."""


def forget_pool(home: Path) -> None:
    (home / "pool.img").unlink(missing_ok=True)
    shutil.rmtree(home / "pool")


def test_a_pool_whose_making_was_killed_can_be_made_again(ground: Ground) -> None:
    whole_s = duration("make", ground)
    for number in range(TRIES):
        forget_pool(ground.home)
        kill_after("make", ground, whole_s * number / TRIES)
        pool = ground.open()
        assert pool.list() == ()
        Path(pool.create("one"), "file").write_text("content")
        pool.close()
        again = ground.open()
        assert Path(again.path("one"), "file").read_text() == "content"
        assert leftovers(ground.home) == []
        again.close()


def test_snapshots_and_removals_that_were_killed_leave_whole_trees_only(ground: Ground) -> None:
    pool = ground.open()
    furnish(pool.create("source"))
    before = picture(pool.path("source"))
    pool.close()
    for number in range(TRIES):
        kill_after("turn_over", ground, TURNOVER_S * number / TRIES)
        pool = ground.open()
        names = pool.list()
        assert "source" in names
        assert all(picture(pool.path(name)) == before for name in names)
        assert leftovers(ground.home) == []
        for name in set(names) - {"source"}:
            pool.remove(name)
        pool.close()


def test_a_growth_that_was_killed_is_completed_at_the_next_start(corner: Path) -> None:
    ground = Ground(corner, "btrfs")
    pool = ground.open()
    furnish(pool.create("one"))
    before = picture(pool.path("one"))
    pool.close()
    image, sizes = corner / "pool.img", []
    for number in range(10 * TRIES):
        if number >= TRIES and sizes[-1] > sizes[0]:  # on a busy machine the first kills may all come before a growth
            break
        kill_after("grow", ground, GROWTH_S * number / TRIES)
        wait_for_no_loop(image)
        pool = ground.open()
        status = image.stat()
        assert status.st_blocks * 512 >= status.st_size
        assert btrfs.space_on_device(str(corner / "pool")).total_bytes == status.st_size
        assert picture(pool.path("one")) == before
        pool.close()
        sizes.append(status.st_size)
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]
    assert "no error found" in check_btrfs(image)


def test_nothing_is_left_mounted_or_attached_when_the_only_user_is_killed(corner: Path) -> None:
    ground = Ground(corner, "btrfs")
    pool = ground.open()
    pool.create("one")
    pool.close()
    with started("hold", ground):
        assert len(loops_of(corner / "pool.img")) == 1
    wait_for_no_loop(corner / "pool.img")


def test_a_pool_that_a_session_still_uses_is_found_again_and_not_attached_twice(corner: Path) -> None:
    home, moved = corner / "home", corner / "moved"
    home.mkdir()
    ground = Ground(home, "btrfs")
    pool = ground.open()
    pool.create("one")
    pool.close()
    with started("hold", ground) as session:
        first = loops_of(home / "pool.img")
        assert len(first) == 1
        home.rename(moved)  # the name does not matter: the file is the same
        again = Ground(moved, "btrfs").open()
        assert loops_of(moved / "pool.img") == first
        assert again.list() == ("one",)
        session.communicate(b"written by the session\n")
        assert Path(again.path("one"), "held").read_text() == "written by the session\n"
        again.close()
    wait_for_no_loop(moved / "pool.img")
    assert "no error found" in check_btrfs(moved / "pool.img")


def test_a_copied_home_is_a_pool_of_its_own(corner: Path) -> None:
    (corner / "home").mkdir()
    pool = Ground(corner / "home", "btrfs").open()
    Path(pool.create("one"), "file").write_text("content")
    pool.close()
    shutil.copytree(corner / "home", corner / "copy")
    copy = Ground(corner / "copy", "btrfs").open()
    copy.remove("one")
    copy.close()
    pool = Ground(corner / "home", "btrfs").open()
    assert Path(pool.path("one"), "file").read_text() == "content"
    pool.close()
