"""A pool is whole after a process that worked on it was killed."""

import shutil
from pathlib import Path

import pytest

from tests.upper.grounds import Ground, check_btrfs, loops_of, wait_for_no_loop
from tests.upper.pictures import furnish, picture
from tests.upper.victims import duration, kill_after, leftovers, started
from waypoint.linux.storage import btrfs

pytestmark = [pytest.mark.soak(part="faults"), pytest.mark.privileged, pytest.mark.requires("btrfs")]

TRIES = 12


def forget_pool(home: Path) -> None:
    (home / "pool.img").unlink(missing_ok=True)
    shutil.rmtree(home / "pool")


def test_a_pool_can_be_made_after_a_killed_attempt(ground: Ground) -> None:
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


def test_killed_snapshots_and_removals_leave_whole_trees_only(ground: Ground) -> None:
    pool = ground.open()
    furnish(pool.create("source"))
    before = picture(pool.path("source"))
    pool.close()
    for number in range(TRIES):
        kill_after("turn_over", ground, 0.003 * number)
        pool = ground.open()
        names = pool.list()
        assert "source" in names
        assert all(picture(pool.path(name)) == before for name in names)
        assert leftovers(ground.home) == []
        for name in set(names) - {"source"}:
            pool.remove(name)
        pool.close()


def test_a_killed_growth_is_completed_at_the_next_opening(corner: Path) -> None:
    ground = Ground(corner, "btrfs")
    pool = ground.open()
    furnish(pool.create("one"))
    before = picture(pool.path("one"))
    pool.close()
    image, sizes = corner / "pool.img", []
    for number in range(10 * TRIES):
        if number >= TRIES and sizes[-1] > sizes[0]:  # on a busy machine, all first kills may come before the growth
            break
        kill_after("grow", ground, 0.002 * number)
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


def test_killing_the_only_user_leaves_no_mount_and_no_loop_device(corner: Path) -> None:
    ground = Ground(corner, "btrfs")
    pool = ground.open()
    pool.create("one")
    pool.close()
    with started("hold", ground):
        assert len(loops_of(corner / "pool.img")) == 1
    wait_for_no_loop(corner / "pool.img")


def test_a_pool_in_use_by_a_session_is_opened_without_a_second_loop_device(corner: Path) -> None:
    home, moved = corner / "home", corner / "moved"
    home.mkdir()
    ground = Ground(home, "btrfs")
    pool = ground.open()
    pool.create("one")
    pool.close()
    with started("hold", ground) as session:
        first = loops_of(home / "pool.img")
        assert len(first) == 1
        home.rename(moved)  # the same file has another name now
        again = Ground(moved, "btrfs").open()
        assert loops_of(moved / "pool.img") == first
        assert again.list() == ("one",)
        session.communicate(b"written by the session\n")
        assert Path(again.path("one"), "held").read_text() == "written by the session\n"
        again.close()
    wait_for_no_loop(moved / "pool.img")
    assert "no error found" in check_btrfs(moved / "pool.img")


def test_a_copied_home_has_an_independent_pool(corner: Path) -> None:
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
