"""The file under the driver `btrfs`: its space, its growth, full disks, and machines that lack something."""

import dataclasses
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.upper.grounds import (
    MIB,
    SIZES,
    Ground,
    check_btrfs,
    fill,
    hide_program,
    is_reserved,
    loops_of,
    mount_new,
    wait_for_no_loop,
)
from tests.upper.pictures import furnish, picture
from waypoint.linux.snapshots import btrfs
from waypoint.linux.storage import filesystem, mounts
from waypoint.model.errors import Failed, HostLacks, StateConflict
from waypoint.upper.contract import GrowthOutcome, PoolSizes, usual_sizes
from waypoint.upper.open_pool import open_pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs")]
SET_ASIDE = 32 * MIB
"""What btrfs may take for its metadata at any moment (grounds.used_bytes)."""


@pytest.fixture
def small_disk(corner: Path) -> Path:
    return mount_new("ext4", corner, 400 * MIB)


def test_the_file_is_private_has_all_its_space_and_goes_out_of_use_with_the_pool(corner: Path) -> None:
    pool = Ground(corner, "btrfs").open()
    image, folder = corner / "pool.img", corner / "pool"
    assert image.stat().st_size == SIZES.initial_bytes
    assert stat.S_IMODE(image.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(loops_of(image)) == 1
    Path(pool.create("one"), "data").write_bytes(os.urandom(16 * MIB))
    pool.sync("one")
    pool.remove("one")
    btrfs.sync_filesystem(str(folder))
    assert is_reserved(image)
    pool.close()
    wait_for_no_loop(image)
    assert os.listdir(folder) == []
    assert is_reserved(image)


def test_the_mount_writes_no_access_times_does_not_discard_and_runs_nothing_as_another_user(corner: Path) -> None:
    pool = Ground(corner, "btrfs").open()
    (record,) = [record for record in mounts.read_mounts() if record.mount_point == str(corner / "pool")]
    assert record.fstype == "btrfs"
    assert {"noatime", "nosuid", "nodev"} <= {*record.options}  # inside, set-uid programs work: test_shifted_ids.py
    assert not [option for option in record.super_options if option.startswith("discard")]
    pool.close()


def test_an_open_pool_of_the_same_mount_namespace_is_not_mounted_over_itself(corner: Path) -> None:
    first, second = Ground(corner, "btrfs").open(), Ground(corner, "btrfs").open()
    first.create("one")
    assert second.list() == ("one",)
    assert mounts.list_mount_points_in(corner) == [str(corner / "pool")]
    second.close()
    assert mounts.list_mount_points_in(corner) == []
    first.close()


def test_it_grows_in_whole_steps_when_less_than_the_headroom_is_free(small_disk: Path) -> None:
    pool = Ground(small_disk, "btrfs").open()
    tree = pool.create("one")
    assert pool.grow_if_needed().outcome is GrowthOutcome.ENOUGH
    Path(tree, "data").write_bytes(os.urandom(SIZES.initial_bytes - SIZES.headroom_bytes - 16 * MIB))
    pool.sync("one")
    assert pool.free_bytes() < SIZES.headroom_bytes

    growth = pool.grow_if_needed()
    assert growth.outcome is GrowthOutcome.GROWN
    assert growth.size_bytes == SIZES.initial_bytes + SIZES.step_bytes
    assert pool.free_bytes() - SIZES.step_bytes < growth.free_bytes <= pool.free_bytes() + SET_ASIDE
    assert filesystem.total_bytes(tree) == SIZES.initial_bytes + SIZES.step_bytes
    assert (small_disk / "pool.img").stat().st_size == SIZES.initial_bytes + SIZES.step_bytes
    assert is_reserved(small_disk / "pool.img")
    assert pool.grow_if_needed().outcome is GrowthOutcome.ENOUGH
    Path(tree, "more").write_bytes(os.urandom(24 * MIB))
    pool.sync("one")
    pool.close()
    wait_for_no_loop(small_disk / "pool.img")
    assert "no error found" in check_btrfs(small_disk / "pool.img")


def test_it_takes_as_many_steps_as_are_needed(small_disk: Path) -> None:
    pool = open_pool(small_disk, "btrfs", dataclasses.replace(SIZES, step_bytes=SIZES.headroom_bytes // 2))
    before = pool.free_bytes()
    growth = pool.grow_if_needed(before - MIB)
    assert growth.outcome is GrowthOutcome.GROWN
    assert growth.size_bytes == SIZES.initial_bytes + SIZES.headroom_bytes
    assert before + SIZES.headroom_bytes - SET_ASIDE <= growth.free_bytes <= before + SIZES.headroom_bytes
    assert pool.grow_if_needed(before - MIB).outcome is GrowthOutcome.ENOUGH
    pool.close()


def test_the_last_step_is_as_large_as_the_floor_allows(small_disk: Path) -> None:
    wide = PoolSizes(SIZES.initial_bytes, step_bytes=64 * MIB, headroom_bytes=1 << 40, floor_bytes=20 * MIB)
    pool = open_pool(small_disk, "btrfs", wide)
    growth = pool.grow_if_needed()
    assert growth.outcome is GrowthOutcome.GROWN
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    assert wide.floor_bytes <= free < wide.floor_bytes + 2 * MIB
    pool.close()


def test_what_is_still_in_the_page_cache_is_not_free(small_disk: Path) -> None:
    pool = Ground(small_disk, "btrfs").open()
    tree = pool.create("one")
    for _ in range(10):
        before, said_before = pool.free_bytes(), filesystem.free_bytes(tree)
        Path(tree, "data").write_bytes(bytes(64 * MIB))
        said, counted = said_before - filesystem.free_bytes(tree), before - pool.free_bytes()
        if said < 24 * MIB:
            break
        os.unlink(f"{tree}/data")  # it is on the device already, as whoever calls sync(2) writes out this one, too
        pool.sync("one")
    assert said < 24 * MIB, "nothing is tried"
    assert 63 * MIB < counted < 80 * MIB + SET_ASIDE
    Path(tree, "more").write_bytes(bytes(SIZES.initial_bytes - SIZES.headroom_bytes - 64 * MIB))
    assert pool.grow_if_needed().outcome is GrowthOutcome.GROWN
    pool.close()


def test_room_ahead_is_taken_where_there_is_room_and_is_no_need(small_disk: Path) -> None:
    pool = Ground(small_disk, "btrfs").open()
    fill(small_disk / "junk")
    assert pool.grow_if_needed(SIZES.initial_bytes).outcome is GrowthOutcome.ENOUGH
    os.unlink(small_disk / "junk")
    assert pool.grow_if_needed(SIZES.initial_bytes).outcome is GrowthOutcome.GROWN
    pool.close()


def test_it_grows_when_names_use_up_the_space_before_data_does(small_disk: Path) -> None:
    pool = open_pool(small_disk, "btrfs", dataclasses.replace(SIZES, headroom_bytes=200 * MIB))
    tree = pool.create("one")
    assert pool.grow_if_needed().outcome is GrowthOutcome.ENOUGH
    for number in range(9000):
        Path(tree, str(number)).touch()
        os.setxattr(f"{tree}/{number}", "user.note", bytes(3900))
    pool.sync("one")
    assert pool.grow_if_needed().outcome is GrowthOutcome.GROWN
    pool.close()


def test_it_does_not_grow_below_the_floor_and_says_so(small_disk: Path) -> None:
    pool = Ground(small_disk, "btrfs").open()
    fill(f"{pool.create('one')}/file")
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    with open(small_disk / "junk", "wb") as junk:
        os.posix_fallocate(junk.fileno(), 0, free - SIZES.floor_bytes - MIB)
    growth = pool.grow_if_needed()
    assert growth.outcome is GrowthOutcome.REFUSED
    assert growth.size_bytes == SIZES.initial_bytes
    assert "32 MiB" in growth.said
    assert (small_disk / "pool.img").stat().st_size == SIZES.initial_bytes
    os.unlink(small_disk / "junk")
    assert pool.grow_if_needed().outcome is GrowthOutcome.GROWN
    pool.close()


def test_a_disk_that_fills_up_while_growing_leaves_the_file_as_it_was(small_disk: Path) -> None:
    pool = open_pool(small_disk, "btrfs", dataclasses.replace(SIZES, floor_bytes=-(1 << 40)))
    fill(f"{pool.create('one')}/file")
    fill(small_disk / "junk")
    growth = pool.grow_if_needed()
    assert growth.outcome is GrowthOutcome.REFUSED
    assert "No space left on device" in growth.said
    assert (small_disk / "pool.img").stat().st_size == SIZES.initial_bytes
    pool.close()


def test_a_full_disk_and_a_full_pool_damage_nothing(small_disk: Path) -> None:
    pool = Ground(small_disk, "btrfs").open()
    furnish(pool.create("kept"))
    pool.seal("kept")
    before = picture(pool.path("kept"))
    fill(small_disk / "junk")
    Path(pool.create("data"), "file").write_bytes(
        os.urandom(100 * MIB)
    )  # the pool has its space, whatever the disk has
    pool.sync("data")
    written = picture(pool.path("data"))
    fill(f"{pool.create('filler')}/file")
    assert pool.grow_if_needed().outcome is GrowthOutcome.REFUSED
    pool.sync("filler")
    pool.close()
    wait_for_no_loop(small_disk / "pool.img")
    assert "no error found" in check_btrfs(small_disk / "pool.img")

    pool = Ground(small_disk, "btrfs").open()
    assert pool.list() == ("data", "filler", "kept")
    assert picture(pool.path("kept")) == before
    assert picture(pool.path("data")) == written
    os.unlink(small_disk / "junk")
    assert pool.grow_if_needed().outcome is GrowthOutcome.GROWN
    pool.snapshot("kept", "new")
    assert picture(pool.path("new")) == before
    pool.close()


def test_a_disk_too_full_for_a_new_pool_is_said_and_nothing_is_left(small_disk: Path) -> None:
    for sizes, words in (
        (dataclasses.replace(SIZES, floor_bytes=300 * MIB), "256 MiB would leave less than 300 MiB free on the disk"),
        (dataclasses.replace(SIZES, initial_bytes=500 * MIB, floor_bytes=-(1 << 40)), "No space left on device"),
        (dataclasses.replace(SIZES, initial_bytes=MIB), "minimum size"),
    ):
        for driver in ("btrfs", "auto"):
            with pytest.raises(Failed, match=words):
                open_pool(small_disk, driver, sizes)
            assert sorted(os.listdir(small_disk)) == ["lost+found", "pool"]
            assert mounts.list_mount_points_in(small_disk / "pool") == []
    Ground(small_disk, "btrfs").open().close()


def test_a_file_that_was_copied_with_holes_gets_its_space_back(small_disk: Path) -> None:
    pool = Ground(small_disk, "btrfs").open()
    furnish(pool.create("one"))
    before = picture(pool.path("one"))
    pool.close()
    image = small_disk / "pool.img"
    wait_for_no_loop(image)
    subprocess.run(["fallocate", "--dig-holes", image], check=True)
    assert not is_reserved(image)

    fill(small_disk / "junk")
    with pytest.raises(Failed, match="No space left on device"):
        Ground(small_disk, "btrfs").open()
    assert mounts.list_mount_points_in(small_disk / "pool") == []
    os.unlink(small_disk / "junk")
    pool = Ground(small_disk, "btrfs").open()
    assert is_reserved(image)
    assert picture(pool.path("one")) == before
    pool.close()


def test_without_mkfs_the_package_is_named(corner: Path) -> None:
    hide_program("mkfs.btrfs")
    with pytest.raises(HostLacks, match="no program mkfs") as refused:
        open_pool(corner, "btrfs", SIZES)
    assert "btrfs-progs" in refused.value.next_step
    assert os.listdir(corner) == ["pool"]


def test_without_mkfs_a_pool_that_is_there_is_opened_all_the_same(corner: Path) -> None:
    pool = Ground(corner, "btrfs").open()
    pool.create("one")
    pool.close()
    hide_program("mkfs.btrfs")
    again = open_pool(corner)
    assert again.list() == ("one",)
    again.close()


def test_a_pool_is_not_mounted_over_what_somebody_has_put_there(corner: Path) -> None:
    (corner / "pool").mkdir()
    (corner / "pool/precious").touch()
    with pytest.raises(StateConflict, match="not empty"):
        open_pool(corner, "btrfs", SIZES)
    assert os.listdir(corner / "pool") == ["precious"]
    assert os.listdir(corner) == ["pool"]


def test_a_damaged_file_is_an_error_in_words_and_is_left_alone(corner: Path) -> None:
    Ground(corner, "btrfs").open().close()
    image = corner / "pool.img"
    wait_for_no_loop(image)
    with image.open("r+b") as file:
        for offset in (64 << 10, 64 << 20):  # the superblock and its copy
            file.seek(offset)
            file.write(bytes(4096))
    before = image.read_bytes()
    with pytest.raises(Failed, match="open the pool"):
        open_pool(corner)
    assert image.read_bytes() == before
    wait_for_no_loop(image)


def test_usual_sizes_follow_the_disk() -> None:
    gib = 1 << 30
    assert usual_sizes(100 * gib, 50 * gib) == PoolSizes(2 * gib, gib, gib, 5 * gib)
    assert usual_sizes(10 * gib, 4 * gib) == PoolSizes(gib, gib, gib, gib)
