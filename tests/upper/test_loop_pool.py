"""The pool file: its space, its growth, full disks, and missing programs."""

import dataclasses
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.upper.pictures import furnish, picture
from tests.upper.pool_homes import (
    MIB,
    SIZES,
    PoolHome,
    check_btrfs,
    fill,
    hide_program,
    is_reserved,
    loops_of,
    mount_new,
    reserved_bytes,
    wait_for_no_loop,
)
from waypoint.linux.storage import btrfs, filesystem, mounts
from waypoint.model.errors import Failed, HostLacks, StateConflict
from waypoint.upper.contract import GrowthOutcome, PoolSizes, usual_sizes
from waypoint.upper.open_pool import open_pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs")]


@pytest.fixture
def small_disk(corner: Path) -> Path:
    return mount_new("ext4", corner, 400 * MIB)


def test_the_pool_file_is_private_and_fully_reserved_and_detached_by_a_close(corner: Path) -> None:
    pool = PoolHome(corner, "btrfs").open()
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


def test_the_pool_is_mounted_without_access_times_discarding_and_set_uid(corner: Path) -> None:
    pool = PoolHome(corner, "btrfs").open()
    (record,) = [record for record in mounts.read_mounts() if record.mount_point == str(corner / "pool")]
    assert record.fstype == "btrfs"
    assert {"noatime", "nosuid", "nodev"} <= {*record.options}  # sessions allow set-uid programs: test_shifted_ids.py
    assert not [option for option in record.super_options if option.startswith("discard")]
    pool.close()


def test_opening_an_open_pool_makes_no_second_mount(corner: Path) -> None:
    first, second = PoolHome(corner, "btrfs").open(), PoolHome(corner, "btrfs").open()
    first.create("one")
    assert second.list() == ("one",)
    assert mounts.list_mount_points_in(corner) == [str(corner / "pool")]
    second.close()
    assert mounts.list_mount_points_in(corner) == []
    first.close()


@pytest.mark.soak(part="disks")
def test_the_pool_grows_by_a_step_when_less_than_the_headroom_is_free(small_disk: Path) -> None:
    pool = PoolHome(small_disk, "btrfs").open()
    tree = pool.create("one")
    assert pool.grow_if_needed().outcome is GrowthOutcome.ENOUGH
    Path(tree, "data").write_bytes(os.urandom(SIZES.initial_bytes - SIZES.headroom_bytes - 8 * MIB))
    pool.sync("one")
    assert pool.free_bytes() < SIZES.headroom_bytes

    growth = pool.grow_if_needed()
    assert growth.outcome is GrowthOutcome.GROWN
    assert growth.size_bytes == SIZES.initial_bytes + SIZES.step_bytes
    assert growth.free_bytes == pool.free_bytes()
    assert reserved_bytes(small_disk / "pool.img") >= SIZES.initial_bytes + SIZES.step_bytes
    assert pool.grow_if_needed().outcome is GrowthOutcome.ENOUGH
    Path(tree, "more").write_bytes(os.urandom(24 * MIB))
    pool.sync("one")
    pool.close()
    wait_for_no_loop(small_disk / "pool.img")
    assert "no error found" in check_btrfs(small_disk / "pool.img")


def test_the_pool_grows_by_as_many_steps_as_needed(small_disk: Path) -> None:
    pool = open_pool(small_disk, "btrfs", dataclasses.replace(SIZES, step_bytes=SIZES.headroom_bytes // 2))
    before = pool.free_bytes()
    growth = pool.grow_if_needed(before - MIB)
    assert growth.outcome is GrowthOutcome.GROWN
    assert growth.size_bytes == SIZES.initial_bytes + SIZES.headroom_bytes
    assert growth.free_bytes == before + SIZES.headroom_bytes
    assert pool.grow_if_needed(before - MIB).outcome is GrowthOutcome.ENOUGH
    pool.close()


def test_the_last_step_leaves_the_floor_free(small_disk: Path) -> None:
    wide = PoolSizes(SIZES.initial_bytes, step_bytes=64 * MIB, headroom_bytes=1 << 40, floor_bytes=20 * MIB)
    pool = open_pool(small_disk, "btrfs", wide)
    growth = pool.grow_if_needed()
    assert growth.outcome is GrowthOutcome.GROWN
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    assert wide.floor_bytes <= free < wide.floor_bytes + 2 * MIB
    pool.close()


def test_the_pool_offers_what_the_disk_has_and_reserves_what_is_used(corner: Path) -> None:
    home = mount_new("ext4", corner, 1024 * MIB)
    pool, image = PoolHome(home, "btrfs").open(), home / "pool.img"
    pool.grow_if_needed()
    spare = filesystem.free_bytes(home) - SIZES.floor_bytes
    assert abs(filesystem.total_bytes(pool.folder) - SIZES.initial_bytes - spare) < 2 * MIB
    assert reserved_bytes(image) < SIZES.initial_bytes + MIB, "the promise has taken disk space"
    with open(f"{pool.create('one')}/file", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, SIZES.initial_bytes + 16 * MIB)
    assert pool.grow_if_needed().outcome is GrowthOutcome.GROWN
    assert reserved_bytes(image) >= btrfs.end_of_chunks(pool.folder) > SIZES.initial_bytes
    mounts.umount(pool.folder)  # as after SIGKILL: the promise was not taken back
    wait_for_no_loop(image)
    assert not is_reserved(image)
    pool = PoolHome(home, "btrfs").open()
    assert os.stat(f"{pool.path('one')}/file").st_size == SIZES.initial_bytes + 16 * MIB
    pool.close()
    assert is_reserved(image)


def test_a_disk_that_other_programs_fill_makes_no_write_error(small_disk: Path) -> None:
    pool = PoolHome(small_disk, "btrfs").open()
    tree = pool.create("one")
    pool.grow_if_needed()
    fill(small_disk / "junk")
    assert filesystem.total_bytes(tree) > SIZES.initial_bytes
    pool.grow_if_needed()
    assert filesystem.total_bytes(tree) == SIZES.initial_bytes
    fill(f"{tree}/file")
    pool.sync("one")
    assert (pool.outlook().is_readonly, pool.outlook().errors) == (False, 0)
    os.unlink(small_disk / "junk")
    assert pool.grow_if_needed().outcome is GrowthOutcome.GROWN
    Path(tree, "more").write_bytes(bytes(MIB))
    pool.sync("one")
    pool.close()


@pytest.mark.soak(part="disks")
def test_data_in_the_page_cache_counts_as_written(small_disk: Path) -> None:
    pool = PoolHome(small_disk, "btrfs").open()
    tree = pool.create("one")
    before, said_before = pool.free_bytes(), filesystem.free_bytes(tree)
    Path(tree, "data").write_bytes(bytes(64 * MIB))
    assert said_before - filesystem.free_bytes(tree) < 48 * MIB, (
        "the data is already on the device, so this test shows nothing"
    )
    assert 63 * MIB < before - pool.free_bytes() < 80 * MIB
    Path(tree, "more").write_bytes(bytes(SIZES.initial_bytes - SIZES.headroom_bytes - 64 * MIB))
    assert pool.grow_if_needed().outcome is GrowthOutcome.GROWN
    pool.close()


def test_the_pool_grows_early_only_if_the_disk_has_space(small_disk: Path) -> None:
    pool = PoolHome(small_disk, "btrfs").open()
    fill(small_disk / "junk")
    assert pool.grow_if_needed(SIZES.initial_bytes).outcome is GrowthOutcome.ENOUGH
    os.unlink(small_disk / "junk")
    assert pool.grow_if_needed(SIZES.initial_bytes).outcome is GrowthOutcome.GROWN
    pool.close()


@pytest.mark.soak(part="disks")
def test_the_pool_grows_when_metadata_runs_short(small_disk: Path) -> None:
    pool = open_pool(small_disk, "btrfs", dataclasses.replace(SIZES, headroom_bytes=200 * MIB))
    tree = pool.create("one")
    assert pool.grow_if_needed().outcome is GrowthOutcome.ENOUGH
    for number in range(9000):
        Path(tree, str(number)).touch()
        os.setxattr(f"{tree}/{number}", "user.note", bytes(3900))
    pool.sync("one")
    assert pool.grow_if_needed().outcome is GrowthOutcome.GROWN
    pool.close()


@pytest.mark.soak(part="disks")
def test_the_pool_refuses_to_grow_below_the_floor(small_disk: Path) -> None:
    pool = PoolHome(small_disk, "btrfs").open()
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


@pytest.mark.soak(part="disks")
def test_a_growth_on_a_full_disk_leaves_the_file_unchanged(small_disk: Path) -> None:
    pool = open_pool(small_disk, "btrfs", dataclasses.replace(SIZES, floor_bytes=-(1 << 40)))
    fill(f"{pool.create('one')}/file")
    fill(small_disk / "junk")
    growth = pool.grow_if_needed()
    assert growth.outcome is GrowthOutcome.REFUSED
    assert "No space left on device" in growth.said
    assert (small_disk / "pool.img").stat().st_size == SIZES.initial_bytes
    pool.close()


@pytest.mark.soak(part="disks")
def test_a_full_disk_and_a_full_pool_damage_nothing(small_disk: Path) -> None:
    pool = PoolHome(small_disk, "btrfs").open()
    furnish(pool.create("kept"))
    pool.seal("kept")
    before = picture(pool.path("kept"))
    fill(small_disk / "junk")
    Path(pool.create("data"), "file").write_bytes(os.urandom(100 * MIB))  # the pool's own space is reserved
    pool.sync("data")
    written = picture(pool.path("data"))
    fill(f"{pool.create('filler')}/file")
    assert pool.grow_if_needed().outcome is GrowthOutcome.REFUSED
    pool.sync("filler")
    pool.close()
    wait_for_no_loop(small_disk / "pool.img")
    assert "no error found" in check_btrfs(small_disk / "pool.img")

    pool = PoolHome(small_disk, "btrfs").open()
    assert pool.list() == ("data", "filler", "kept")
    assert picture(pool.path("kept")) == before
    assert picture(pool.path("data")) == written
    os.unlink(small_disk / "junk")
    assert pool.grow_if_needed().outcome is GrowthOutcome.GROWN
    pool.snapshot("kept", "new")
    assert picture(pool.path("new")) == before
    pool.close()


def test_a_new_pool_on_a_full_disk_is_refused_and_leaves_nothing(small_disk: Path) -> None:
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
    PoolHome(small_disk, "btrfs").open().close()


@pytest.mark.soak(part="disks")
def test_opening_reserves_the_space_of_a_sparse_file_again(small_disk: Path) -> None:
    pool = PoolHome(small_disk, "btrfs").open()
    furnish(pool.create("one"))
    before = picture(pool.path("one"))
    pool.close()
    image = small_disk / "pool.img"
    wait_for_no_loop(image)
    subprocess.run(["fallocate", "--dig-holes", image], check=True)
    assert not is_reserved(image)

    fill(small_disk / "junk")
    with pytest.raises(Failed, match="No space left on device"):
        PoolHome(small_disk, "btrfs").open()
    assert mounts.list_mount_points_in(small_disk / "pool") == []
    os.unlink(small_disk / "junk")
    pool = PoolHome(small_disk, "btrfs").open()
    assert reserved_bytes(image) >= btrfs.end_of_chunks(pool.folder)
    assert picture(pool.path("one")) == before
    pool.close()
    assert is_reserved(image)


def test_a_missing_mkfs_names_the_package(corner: Path) -> None:
    hide_program("mkfs.btrfs")
    with pytest.raises(HostLacks, match="the program mkfs") as refused:
        open_pool(corner, "btrfs", SIZES)
    assert "btrfs-progs" in refused.value.next_step
    assert os.listdir(corner) == ["pool"]


def test_an_existing_pool_opens_without_mkfs(corner: Path) -> None:
    pool = PoolHome(corner, "btrfs").open()
    pool.create("one")
    pool.close()
    hide_program("mkfs.btrfs")
    again = open_pool(corner)
    assert again.list() == ("one",)
    again.close()


def test_a_pool_is_not_mounted_over_existing_files(corner: Path) -> None:
    (corner / "pool").mkdir()
    (corner / "pool/precious").touch()
    with pytest.raises(StateConflict, match="not empty"):
        open_pool(corner, "btrfs", SIZES)
    assert os.listdir(corner / "pool") == ["precious"]
    assert os.listdir(corner) == ["pool"]


def test_a_damaged_file_is_refused_and_left_unchanged(corner: Path) -> None:
    PoolHome(corner, "btrfs").open().close()
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


def test_the_usual_sizes_depend_on_the_disk() -> None:
    gib = 1 << 30
    assert usual_sizes(100 * gib, 50 * gib) == PoolSizes(2 * gib, gib, gib, 5 * gib)
    assert usual_sizes(10 * gib, 4 * gib) == PoolSizes(gib, gib, gib, gib)
