"""btrfs ioctls on a small file system."""

import errno
import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.linux.calls import programs
from waypoint.linux.storage import btrfs, btrfs_blocks, btrfs_sharing, loop, mounts
from waypoint.linux.storage.descriptors import open_folder

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs")]

MIB = 1 << 20


@pytest.fixture
def image(corner: Path) -> Path:
    path = corner / "image"
    path.touch()
    os.truncate(path, 256 * MIB)
    btrfs.make_filesystem(str(path))
    return path


@pytest.fixture
def top(image: Path, corner: Path) -> Iterator[str]:
    """The mount point of a new btrfs."""
    (corner / "top").mkdir()
    with image.open("r+b") as file, loop.attach(file.fileno()) as device:
        mounts.mount(device.path, corner / "top", "btrfs")
        yield str(corner / "top")
        mounts.umount(corner / "top")


def test_subvolumes_and_folders_are_distinguished(top: str) -> None:
    btrfs.create_subvolume(f"{top}/one")
    os.mkdir(f"{top}/folder")
    assert btrfs.is_subvolume(f"{top}/one")
    assert not btrfs.is_subvolume(f"{top}/folder")


def test_an_error_has_the_errno_and_the_path(top: str) -> None:
    btrfs.create_subvolume(f"{top}/one")
    with pytest.raises(FileExistsError, match="BTRFS_IOC_SUBVOL_CREATE_V2") as refused:
        btrfs.create_subvolume(f"{top}/one")
    assert refused.value.filename == f"{top}/one"
    with pytest.raises(FileExistsError, match="BTRFS_IOC_SNAP_CREATE_V2"):
        btrfs.snapshot_subvolume(f"{top}/one", f"{top}/one")
    with pytest.raises(FileNotFoundError, match="BTRFS_IOC_SNAP_DESTROY"):
        btrfs.destroy_subvolume(f"{top}/gone")


def test_all_names_of_an_inode_are_found(top: str) -> None:
    btrfs.create_subvolume(f"{top}/one")
    os.makedirs(f"{top}/one/a/b")
    with open(f"{top}/one/file", "wb") as file:
        os.link(f"{top}/one/file", f"{top}/one/a/b/\udcff" + "n" * 200)
        inode = os.fstat(file.fileno()).st_ino
        btrfs.snapshot_subvolume(f"{top}/one", f"{top}/two", readonly=True)
        assert sorted(btrfs.paths_of_inode(f"{top}/two", inode)) == [b"a/b/\xff" + b"n" * 200, b"file"]
        os.unlink(f"{top}/one/file")
        os.unlink(f"{top}/one/a/b/\udcff" + "n" * 200)
        assert btrfs.paths_of_inode(f"{top}/one", inode) == []
        assert btrfs.paths_of_inode(f"{top}/one", inode + 100) == []
        assert btrfs.paths_of_inode(f"{top}/two", inode) != []


def test_only_a_subvolume_can_be_snapshotted_or_destroyed(top: str) -> None:
    os.mkdir(f"{top}/folder")
    with pytest.raises(OSError, match="BTRFS_IOC_SNAP_CREATE_V2"):
        btrfs.snapshot_subvolume(f"{top}/folder", f"{top}/copy")
    with pytest.raises(OSError, match="BTRFS_IOC_SNAP_DESTROY"):
        btrfs.destroy_subvolume(f"{top}/folder")
    assert os.listdir(top) == ["folder"]


def test_names_of_subvolumes_have_1_to_255_bytes(top: str) -> None:
    btrfs.create_subvolume(f"{top}/{'n' * 255}")
    for name in ("", "n" * 256):
        with pytest.raises(ValueError, match="1 to 255 bytes"):
            btrfs.create_subvolume(f"{top}/{name}")


def test_making_one_subvolume_read_only_leaves_its_snapshots_writable(top: str) -> None:
    btrfs.create_subvolume(f"{top}/one")
    btrfs.snapshot_subvolume(f"{top}/one", f"{top}/sealed", readonly=True)
    btrfs.snapshot_subvolume(f"{top}/sealed", f"{top}/open")
    assert [os.access(f"{top}/{name}", os.W_OK) for name in ("one", "sealed", "open")] == [True, False, True]
    btrfs.make_readonly(f"{top}/one")
    assert not os.access(f"{top}/one", os.W_OK)
    btrfs.destroy_subvolume(f"{top}/one")
    btrfs.destroy_subvolume(f"{top}/sealed")
    assert os.listdir(top) == ["open"]


def test_a_file_system_grows_to_the_size_of_its_device(top: str, image: Path) -> None:
    assert btrfs.space_on_device(top).total_bytes == 256 * MIB
    os.truncate(image, 320 * MIB)
    with image.open("rb") as file:
        device = loop.find_attached(file.fileno())
    assert device is not None
    with device:
        device.update_capacity()
    btrfs.resize(top, 320 * MIB)
    btrfs.resize(top, 320 * MIB)
    space = btrfs.space_on_device(top)
    assert space.total_bytes == 320 * MIB
    assert 0 < space.unallocated_bytes < space.total_bytes
    assert 0 < space.metadata_free_bytes < 320 * MIB


def test_making_a_file_system_keeps_the_reserved_space_of_the_file(corner: Path) -> None:
    path = corner / "reserved"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 256 * MIB)
    btrfs.make_filesystem(str(path))
    assert path.stat().st_blocks * 512 >= 256 * MIB


def test_calls_on_another_file_system_raise_enotty(corner: Path) -> None:
    with pytest.raises(OSError, match="BTRFS_IOC_SUBVOL_CREATE_V2") as refused:
        btrfs.create_subvolume(str(corner / "one"))
    assert refused.value.errno == errno.ENOTTY


@pytest.mark.soak(part="timing")
def test_a_snapshot_does_not_block_other_threads(top: str) -> None:
    btrfs.create_subvolume(f"{top}/one")
    Path(f"{top}/one/data").write_bytes(os.urandom(128 * MIB))
    seen, ended = [time.monotonic()], threading.Event()

    def look_at_the_clock() -> None:
        while not ended.is_set():
            seen.append(time.monotonic())

    other = threading.Thread(target=look_at_the_clock)
    other.start()
    try:
        began = time.monotonic()
        btrfs.snapshot_subvolume(f"{top}/one", f"{top}/two")
        took_s = time.monotonic() - began
    finally:
        ended.set()
        other.join()
    assert max(after - before for before, after in itertools.pairwise(seen)) < took_s / 2


def test_own_bytes_are_those_that_removing_a_subvolume_frees(top: str) -> None:
    btrfs.create_subvolume(f"{top}/one")
    for number in range(2000):
        Path(top, f"one/{number}").write_bytes(os.urandom(4096))
    Path(top, "one/large").write_bytes(os.urandom(16 * MIB))
    btrfs.snapshot_subvolume(f"{top}/one", f"{top}/two", readonly=True)
    with open(f"{top}/one/large", "r+b") as file:
        file.write(bytes(4 * MIB))
    for number in range(0, 2000, 2):
        os.unlink(f"{top}/one/{number}")
    Path(top, "one/new").write_bytes(os.urandom(3 * MIB))
    btrfs.create_subvolume(f"{top}/three")
    programs.run("cp", "--reflink=always", f"{top}/one/new", f"{top}/three/copy")
    btrfs.sync_filesystem(top)

    trees, everything = btrfs_sharing.sharing(top)
    assert {name: total // MIB for name, (total, _) in trees.items()} == {"one": 27, "two": 24, "three": 3}
    assert btrfs.space_on_device(top).data_bytes <= everything < btrfs.space_on_device(top).data_bytes + 4 * MIB
    for name in ("two", "three", "one"):
        before, own = btrfs.space_on_device(top).data_bytes, btrfs_sharing.sharing(top).trees[name][1]
        btrfs.destroy_subvolume(f"{top}/{name}")
        assert btrfs.wait_until_cleaned(top, 60)
        freed = before - btrfs.space_on_device(top).data_bytes
        assert freed <= own < freed + 2 * MIB, name  # metadata counts, too
    assert btrfs_sharing.sharing(top) == ({}, 0)


def test_a_block_that_was_used_again_is_recognised(top: str) -> None:
    btrfs.create_subvolume(f"{top}/one")
    btrfs.sync_filesystem(top)
    with btrfs_blocks.Disk(top) as disk, open_folder(top) as fd:
        (root,) = btrfs_sharing.roots(fd, top).values()
        assert [block.address for block in disk.read({root.address: root.transaction}, root.level)] == [root.address]
        for wanted, level in (({root.address: root.transaction + 1}, 0), ({root.address: root.transaction}, 1)):
            with pytest.raises(btrfs_blocks.Changed):
                list(disk.read(wanted, level))
