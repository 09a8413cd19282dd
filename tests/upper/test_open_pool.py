"""The choice of a pool's driver, and errors if the machine does not support it."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.upper.pool_homes import MIB, SIZES, hide_program, mount_new, used_bytes
from waypoint.linux.storage import filesystem, mounts
from waypoint.model.errors import Failed, HostLacks, StateConflict
from waypoint.upper.contract import refusals
from waypoint.upper.open_pool import Driver, open_pool

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs", "overlay")]


def open_again_and_again(home: Path, first: Driver) -> list[str]:
    """Open a new pool with `first`, `auto` and `first` again, and return the driver of each opening."""
    drivers = []
    for driver in (first, "auto", first):
        pool = open_pool(home, driver, SIZES)
        drivers.append(pool.driver)
        pool.create(f"tree {len(pool.list())}")
        pool.close()
    pool = open_pool(home)
    assert pool.list() == ("tree 0", "tree 1", "tree 2")
    pool.close()
    return drivers


def test_a_home_on_btrfs_uses_subvolumes_of_this_btrfs(corner: Path) -> None:
    home = mount_new("btrfs", corner, 256 * MIB) / "home"
    home.mkdir()
    assert open_again_and_again(home, "auto") == ["btrfs"] * 3
    assert os.listdir(home) == ["pool"]


def test_a_home_elsewhere_gets_a_pool_file(corner: Path) -> None:
    assert open_again_and_again(corner, "auto") == ["btrfs"] * 3
    assert sorted(os.listdir(corner)) == ["pool", "pool.img"]


def test_copying_is_used_if_it_is_requested(corner: Path) -> None:
    assert open_again_and_again(corner, "copy") == ["copy"] * 3
    assert os.listdir(corner) == ["pool"]


def test_copying_is_used_if_btrfs_cannot_be_made(corner: Path) -> None:
    hide_program("mkfs.btrfs")
    assert open_again_and_again(corner, "auto") == ["copy"] * 3


def test_copying_is_used_without_loop_devices(corner: Path) -> None:
    bare = corner / "dev"
    bare.mkdir()
    for name in ("null", "urandom"):
        (bare / name).touch()
        mounts.bind(f"/dev/{name}", bare / name)
    mounts.bind(bare, "/dev", recursive=True)
    home = corner / "home"
    home.mkdir()
    with pytest.raises(HostLacks, match="no loop device"):
        open_pool(home, "btrfs", SIZES)
    assert os.listdir(home) == ["pool"]
    assert open_again_and_again(home, "auto") == ["copy"] * 3


def test_a_pool_is_not_opened_with_another_driver(corner: Path) -> None:
    for made, other in (("btrfs", "copy"), ("copy", "btrfs")):
        home = corner / made
        home.mkdir()
        open_pool(home, made, SIZES).close()  # type: ignore[arg-type]
        with pytest.raises(StateConflict, match=f"the home already has a pool of the driver {made}"):
            open_pool(home, other, SIZES)  # type: ignore[arg-type]


def test_a_home_with_a_pool_file_is_refused_without_loop_devices(corner: Path) -> None:
    open_pool(corner, "auto", SIZES).close()
    mounts.mount("tmpfs", "/dev", "tmpfs")
    with pytest.raises(HostLacks, match="no loop device"):
        open_pool(corner)


def test_copying_is_refused_on_a_file_system_that_cannot_hold_upper_trees(corner: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (corner / name).mkdir()
    layers = ",".join(f"{name}dir={corner / name}" for name in ("lower", "upper", "work"))
    mounts.mount("overlay", corner / "merged", "overlay", 0, layers)
    with pytest.raises(HostLacks, match="refuses what overlayfs needs") as refused:
        open_pool(corner / "merged", "copy")
    assert "ext4, XFS or btrfs" in refused.value.next_step
    assert os.listdir(corner / "merged/pool") == []


def test_copies_share_blocks_on_btrfs(corner: Path) -> None:
    home = mount_new("btrfs", corner, 256 * MIB)
    pool = open_pool(home, "copy")
    Path(pool.create("one"), "data").write_bytes(os.urandom(32 * MIB))
    pool.sync("one")
    before = used_bytes(pool.path("one"))
    pool.snapshot("one", "two")
    pool.sync("two")
    assert used_bytes(pool.path("two")) - before < 4 * MIB
    assert Path(pool.path("two"), "data").read_bytes() == Path(pool.path("one"), "data").read_bytes()
    pool.close()


def test_the_home_may_be_a_symlink(corner: Path) -> None:
    (corner / "real").mkdir()
    (corner / "link").symlink_to("real")
    pool = open_pool(corner / "link", "btrfs", SIZES)
    assert pool.create("one") == f"{corner}/real/pool/one"
    pool.remove("one")
    pool.close()
    assert mounts.list_mount_points_in(corner) == []


def test_an_error_of_the_system_has_a_next_step() -> None:
    for error in (PermissionError(errno.EPERM, "no"), subprocess.CalledProcessError(1, "mkfs", stderr=b"no")):
        with pytest.raises(Failed, match="no") as caught, refusals("make", "it"):
            raise error
        assert caught.value.next_step == "see the kernel's log (dmesg), and try again"


def test_a_sealed_tree_of_plain_folders_is_measured_once(corner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = open_pool(corner, "copy")
    Path(pool.create("one"), "file").write_bytes(bytes(3 * MIB))
    pool.snapshot("one", "two", sealed=True)
    before = pool.usage("two")
    pool.snapshot("two", "three")
    Path(pool.path("three"), "more").write_bytes(bytes(2 * MIB))
    assert (before // MIB, pool.usage("three") // MIB) == (3, 5)
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "used_bytes", lambda *_: pytest.fail("walks over the files"))
        assert pool.usage("two") == before
    pool.remove("one")
    assert pool.unique_bytes() // MIB == 8
