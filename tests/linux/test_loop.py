"""Loop devices."""

import os
from pathlib import Path

import pytest

from tests.waiting import wait_until
from waypoint.linux.calls import programs
from waypoint.linux.storage import loop, mounts

pytestmark = pytest.mark.privileged

MIB = 1 << 20
LO_FLAGS_READ_ONLY = 1


@pytest.fixture
def image(corner: Path) -> Path:
    path = corner / "image"
    path.touch()
    os.truncate(path, 16 * MIB)
    programs.run("mkfs.ext4", "-q", "-b", "4096", path)
    return path


def test_an_attached_file_is_the_content_of_the_device(image: Path) -> None:
    with image.open("r+b") as file, loop.attach(file.fileno()) as device:
        with open(device.path, "rb") as raw:
            assert raw.read(MIB) == image.read_bytes()[:MIB]
        status = device.read_status()
        assert (status.device, status.inode) == (image.stat().st_dev, image.stat().st_ino)
        assert status.flags & loop.LO_FLAGS_AUTOCLEAR
        assert status.flags & loop.LO_FLAGS_DIRECT_IO
        assert not status.flags & LO_FLAGS_READ_ONLY


def test_closing_a_device_detaches_its_file(image: Path) -> None:
    with image.open("r+b") as file:
        device = loop.attach(file.fileno())
        device.close()
        device.close()
        wait_detached(file.fileno())


def test_a_mounted_device_stays_attached(image: Path, corner: Path) -> None:
    with image.open("r+b") as file:
        with loop.attach(file.fileno()) as device:
            (corner / "point").mkdir()
            mounts.mount(device.path, corner / "point", "ext4")
        with (corner / "point/file").open("w"):
            mounts.umount(corner / "point", mounts.MNT_DETACH)
            found = loop.find_attached(file.fileno())
            assert found is not None
            assert found.path == device.path
            found.close()
        wait_detached(file.fileno())


def is_attached(file: int) -> bool:
    found = loop.find_attached(file)
    if found is not None:
        found.close()
    return found is not None


def wait_detached(file: int) -> None:
    """Wait until no loop device has the file: udev may hold the device open for a moment."""
    wait_until(lambda: not is_attached(file), "the file has no device")


def test_a_device_is_found_by_the_file_not_by_its_name(image: Path) -> None:
    other = image.with_name("other")
    other.write_bytes(image.read_bytes())
    with image.open("r+b") as file, other.open("r+b") as decoy, loop.attach(file.fileno()) as device:
        image.rename(image.with_name("moved"))
        other.rename(image)
        with image.with_name("moved").open("rb") as again:
            found = loop.find_attached(again.fileno())
        assert found is not None
        assert found.path == device.path
        found.close()
        assert loop.find_attached(decoy.fileno()) is None


def test_update_capacity_grows_the_device_to_its_file(image: Path) -> None:
    with image.open("r+b") as file, loop.attach(file.fileno()) as device, open(device.path, "rb") as raw:
        os.truncate(image, 32 * MIB)
        assert raw.seek(0, os.SEEK_END) == 16 * MIB
        device.update_capacity()
        assert raw.seek(0, os.SEEK_END) == 32 * MIB


def test_attaching_a_folder_is_refused(corner: Path) -> None:
    folder = os.open(corner, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="LOOP_CONFIGURE"):
            loop.attach(folder)
    finally:
        os.close(folder)
