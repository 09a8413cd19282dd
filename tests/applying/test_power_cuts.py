"""A machine that loses its power while its files are changed has them, when it is back, as before or as after.

The disk is a file that can be copied in one moment: the copy is what the kernel had written to the disk until then.
What was not synced yet is mostly not there; with a sync of something else, just before, names are there, and contents
are not.
"""

import contextlib
import fcntl
import functools
import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.applying.ground import Ground, furnish
from tests.faults import some
from tests.upper.grounds import MIB, mount_new
from tests.upper.pictures import picture
from waypoint.branch.applying import apply_steps
from waypoint.linux.calls.programs import run
from waypoint.linux.storage import filesystem, loop, mounts

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs")]
FICLONE = 0x40049409  # linux/fs.h
ORDINARY = "commit=300"  # else the kernel writes names every five seconds, and not all that a power loss takes is lost


class Cut(NamedTuple):
    """What the disk had when `step` was done for the `times`th time. `names`: whether the names had come to it."""

    step: StrEnum
    times: int
    names: bool
    disk: Path

    def __str__(self) -> str:
        return f"{self.step} {self.times} {'with names' if self.names else ''}"


class Disk:
    """A file system at `point`. `cuts`: of the power, so far."""

    def __init__(self, holder: Path, point: Path) -> None:
        self.point, self.cuts = point, list[Cut]()
        self._holder, self._image = holder, holder / "disk"
        self._image.touch()
        os.truncate(self._image, 24 * MIB)
        run("mkfs.ext4", "-q", "-m", "0", "-b", "4096", self._image)
        point.mkdir()
        self._mount(self._image)

    def _mount(self, image: Path) -> None:
        with image.open("r+b") as file, loop.attach(file.fileno()) as device:
            mounts.mount(device.path, self.point, "ext4", 0, ORDINARY)

    def cut(self, step: StrEnum) -> None:
        """Keep what the disk has now; and what it has when something else is synced."""
        times = sum(1 for cut in self.cuts if cut.step is step and cut.names)
        for names in (False, True):
            if names:
                with (self.point / "something else").open("wb") as file:
                    file.write(b"x")
                    os.fsync(file.fileno())
            copy = self._holder / str(len(self.cuts))
            with copy.open("wb") as target, self._image.open("rb") as source:
                fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
            self.cuts.append(Cut(step, times, names, copy))

    @contextlib.contextmanager
    def after(self, cut: Cut) -> Iterator[None]:
        """The machine is back after this cut."""
        self._mount(cut.disk)  # over the other one
        try:
            yield
        finally:
            mounts.umount(self.point)


@pytest.fixture
def disk(corner: Path) -> Iterator[Disk]:
    mounts.mount("tmpfs", corner, "tmpfs", 0, "size=512m")
    holder = mount_new("btrfs", corner, 400 * MIB)
    made = Disk(holder, corner / "point")
    try:
        yield made
    finally:
        for point in (made.point, holder, corner):
            mounts.umount(point)


def cut_at_each_step(disk: Disk, act: Callable[[], object]) -> list[Cut]:
    """Do it to its end, and return the cuts that there could have been."""
    filesystem.sync_filesystem(disk.point)
    disk.cuts = []
    apply_steps.listener = disk.cut
    try:
        act()
    finally:
        apply_steps.listener = None
    return disk.cuts


def aspects(cut: Cut) -> list[tuple[object, ...]]:
    return [(cut.step, cut.names), (cut.step, cut.times % 3)]


def check(ground: Ground, disk: Disk, cuts: list[Cut], before: Any, after: Any) -> set[bool]:
    """Returns whether there were some after which it was done, and not done."""
    outcomes = set()
    for cut in cuts:
        with disk.after(cut):
            known = len(ground.recorded)
            found = ground.recover()
            assert found.failed == [], cut
            is_done = bool(found.unrecorded) or ground.last in ground.recorded
            assert picture(ground.base) == (after if is_done else before), cut
            assert ground.beside() == []
            again = ground.recover()
            assert (again.taken_back, again.finished, again.failed) == ([], [], []), cut
            assert len(ground.recorded) == known
            outcomes.add(is_done)
    return outcomes


def test_before_or_after(disk: Disk) -> None:
    """So is it when the change is taken back."""
    ground = Ground(disk.point)
    furnish(ground)
    before = picture(ground.base)
    with ground.session() as view:
        after = picture(view)
    cuts = cut_at_each_step(disk, ground.apply)
    assert {cut.step for cut in cuts} == set(apply_steps.ApplyStep)
    assert check(ground, disk, some(cuts, aspects), before, after) == {True, False}
    cuts = cut_at_each_step(disk, functools.partial(ground.revert, ground.recorded[-1]))
    assert check(ground, disk, some(cuts, aspects), after, before) == {True, False}


@pytest.mark.alone("whoever syncs all disks of the machine syncs this one, too")
def test_who_does_not_sync_is_found_out(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control. Where somebody has synced all disks meanwhile, it is taken back and done again."""
    ground = Ground(disk.point)
    furnish(ground)
    before = picture(ground.base)
    with ground.session() as view:
        after = picture(view)
    for _ in range(3):
        filesystem.sync_filesystem(disk.point)
        with monkeypatch.context() as patch:
            patch.setattr(filesystem, "sync_filesystem", lambda path: None)
            cuts = cut_at_each_step(disk, ground.apply)
            try:
                check(ground, disk, [cut for cut in cuts if cut.names], before, after)
            except AssertionError as error:
                if "apply-finished" in str(error):
                    return
                raise
        ground.revert(ground.recorded[-1])
    raise AssertionError("nobody was found out")
