"""What a disk has of names.db at the moment of a power loss: a copy of the file that stands for the disk."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corner import corner as corner
from tests.store.test_names_store import capture_of, row_of
from tests.upper.grounds import MIB, mount_new
from waypoint.linux.storage import filesystem, loop, mounts
from waypoint.model.errors import StoreDamaged
from waypoint.model.records import Standing
from waypoint.store.names import Names

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root")]


@pytest.fixture
def disk(corner: Path) -> Iterator[Path]:
    """Where a file system of its own is mounted."""
    point = mount_new("ext4", corner, 32 * MIB, "commit=300")  # not every five seconds
    yield point
    mounts.umount(point, mounts.MNT_DETACH)


@contextlib.contextmanager
def after_the_power_cut(disk: Path) -> Iterator[Path]:
    """What the next boot finds of the disk as it is now."""
    copy, point = disk.parent / "copy.img", disk.parent / "copy"
    shutil.copyfile(disk.parent / "ext4.img", copy)
    point.mkdir()
    with copy.open("r+b") as file, loop.attach(file.fileno()) as device:
        mounts.mount(device.path, point, "ext4")
    try:
        yield point
    finally:
        mounts.umount(point, mounts.MNT_DETACH)


ALONE = pytest.mark.alone("whoever syncs all disks of the machine syncs this one, too")


@pytest.mark.parametrize("is_synced", [True, pytest.param(False, marks=ALONE)])
def test_what_was_synced_survives_a_power_loss_and_other_commits_need_not(disk: Path, *, is_synced: bool) -> None:
    with contextlib.closing(Names(disk / "names.db")) as names:
        filesystem.sync_filesystem(disk)
        capture = capture_of(row_of("main"))
        with names.change("checkpoint") as change:
            change.add(capture)
        with names.change("store") as change:
            change.set_standing(capture.id, Standing(image="ab" * 32, durable=True))
        if is_synced:
            names.sync()
        with after_the_power_cut(disk) as found, contextlib.closing(Names(found / "names.db")) as later:
            if is_synced:
                assert later.capture(capture.id) == capture
                assert later.standing(capture.id) == names.standing(capture.id)
            else:  # or the test shows nothing
                with pytest.raises(StoreDamaged, match="no such record"):
                    later.capture(capture.id)
