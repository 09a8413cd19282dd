"""What btrfs or the stamps of files say has changed is enough: the new folder is what reading all of it gives."""

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.content.stores import new_store
from tests.store.trees.test_folders import bring, put
from tests.upper.grounds import MIB, mount_new
from tests.upper.pictures import picture
from waypoint.linux.snapshots import btrfs, file_stamps
from waypoint.linux.snapshots.btrfs_send import Differences, differences
from waypoint.linux.storage import mounts
from waypoint.linux.storage.descriptors import open_folder
from waypoint.store.content.opened import Store
from waypoint.store.trees.updating import update

pytestmark = [pytest.mark.privileged, pytest.mark.requires("btrfs")]
SEEDS = range(int(os.environ.get("WAYPOINT_TEST_TREES", "12")))


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    point = mount_new("btrfs", tmp_path_factory.mktemp("ground"), 512 * MIB)
    yield point
    mounts.umount(point)


class Changing:
    """A subvolume that is changed at random, and its snapshots."""

    def __init__(self, ground: Path, seed: int) -> None:
        self.pick = random.Random(seed)
        self.folder = ground / f"live-{seed}"
        self.snapshots: list[Path] = []
        btrfs.create_subvolume(str(self.folder))

    def snapshot(self) -> Path:
        path = self.folder.with_name(f"{self.folder.name}-{len(self.snapshots)}")
        btrfs.snapshot_subvolume(str(self.folder), str(path), readonly=True)
        self.snapshots.append(path)
        return path

    def remove(self) -> None:
        for path in [self.folder, *self.snapshots]:
            btrfs.destroy_subvolume(str(path))

    def step(self) -> None:
        acts = [
            self.write,
            self.write,
            self.folder_new,
            self.rename,
            self.rename,
            self.remove_one,
            self.link,
            self.touch,
        ]
        with contextlib.suppress(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, OSError):
            self.pick.choice(acts)()

    def paths(self) -> list[Path]:
        return sorted(self.folder.rglob("*"))

    def some(self) -> Path:
        return self.pick.choice(self.paths() or [self.new()])

    def new(self) -> Path:
        folders = [self.folder, *(path for path in self.paths() if path.is_dir() and not path.is_symlink())]
        return self.pick.choice(folders) / self.pick.choice("abcdefghij")

    def write(self) -> None:
        path = self.new() if self.pick.random() < 0.5 else self.some()
        if not path.is_dir():
            mode = self.pick.choice(["r+b", "ab"]) if path.exists() else "wb"
            with path.open(mode) as file:
                file.write(self.pick.randbytes(self.pick.choice([0, 10, 5000])))

    def folder_new(self) -> None:
        self.new().mkdir()

    def rename(self) -> None:
        os.rename(self.some(), self.new())

    def remove_one(self) -> None:
        path = self.some()
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()

    def link(self) -> None:
        if self.pick.random() < 0.7:
            os.link(self.pick.choice([path for path in self.paths() if path.is_file()] or [self.folder]), self.new())
        else:
            self.new().symlink_to("somewhere")

    def touch(self) -> None:
        path = self.pick.choice([self.folder, self.some()])
        if path.is_symlink():
            return
        act = self.pick.randrange(4)
        if act == 0:
            path.chmod(self.pick.choice([0o700, 0o755, 0o644]))
        elif act == 1:
            os.chown(path, self.pick.randrange(3), self.pick.randrange(3))
        elif act == 2:
            os.setxattr(path, "user.note", self.pick.randbytes(4))
        else:
            os.utime(path, ns=(1, self.pick.randrange(1 << 40)))


def note_all(folder: Path) -> None:
    """Note the stamps, and have all of them trusted: what is changed from now on has a later ctime."""
    file_stamps.note(folder, trusted_ns=file_stamps.writing_out_begins_ns() + 3_600_000_000_000)
    probe = folder.with_name("probe")
    probe.touch()
    begun = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == begun:
        probe.touch()


def updated(store: Store, now: Path, digest: bytes, changes: Differences) -> bytes:
    with store.writing("update") as writer, open_folder(now) as fd:
        found = update(writer, fd, digest, changes)
        writer.commit()
        return found


@pytest.mark.parametrize("seed", SEEDS)
def test_an_update_gives_what_reading_all_gives(ground: Path, tmp_path: Path, seed: int) -> None:
    changing = Changing(ground, seed)
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        for _ in range(40):
            changing.step()
        before = changing.snapshot()
        note_all(before)
        digest = put(store, before)
        for _ in range(8):
            for _ in range(changing.pick.choice([0, 1, 3, 25])):
                changing.step()
            now = changing.snapshot()
            by_stamps = file_stamps.differences(before, now)
            assert by_stamps is not None
            found = [updated(store, now, digest, one) for one in (differences(str(before), str(now)), by_stamps)]
            digest = put(store, now)
            assert found == [digest, digest], f"{now} after {before}"
            note_all(now)
            before = now
        assert picture(bring(store, digest, tmp_path / "back")) == picture(before)
    changing.remove()


def test_the_other_names_of_a_file_are_updated_too(ground: Path, tmp_path: Path) -> None:
    """Also if the folder of one of them has another name by now."""
    changing = Changing(ground, 1_000_001)
    for name in ("one", "two"):
        (changing.folder / name).mkdir()
    (changing.folder / "one/file").write_text("first")
    os.link(changing.folder / "one/file", changing.folder / "two/other")
    before = changing.snapshot()
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        digest = put(store, before)
        note_all(before)
        (changing.folder / "one").rename(changing.folder / "renamed")
        (changing.folder / "renamed/file").write_text("second")
        now = changing.snapshot()
        by_stamps = file_stamps.differences(before, now)
        assert by_stamps is not None
        for changes in (differences(str(before), str(now)), by_stamps):
            assert updated(store, now, digest, changes) == put(store, now)
    changing.remove()


def test_what_is_not_changed_is_not_read(ground: Path, tmp_path: Path) -> None:
    changing = Changing(ground, 1_000_002)
    for number in range(300):
        (changing.folder / f"d{number % 10}").mkdir(exist_ok=True)
        (changing.folder / f"d{number % 10}" / f"f{number}").write_text(str(number))
    before = changing.snapshot()
    (changing.folder / "d3/f3").write_text("changed")
    now = changing.snapshot()
    assert differences(str(before), str(now)).touched == {b"d3/f3"}
    assert differences(str(before), str(before)).touched == set()
    note_all(before)
    by_stamps = file_stamps.differences(before, now)
    assert by_stamps is not None
    assert by_stamps.touched == {b"d3/f3"}
    with contextlib.closing(new_store(tmp_path / "store")) as store:
        digest = put(store, before)
        with store.writing("update") as writer, open_folder(now) as fd:
            update(writer, fd, digest, differences(str(before), str(now)))
            assert writer.added.objects == 4  # the file, its folder, the folder above, the root
    changing.remove()


def test_snapshots_of_two_file_systems_are_refused(ground: Path, tmp_path: Path) -> None:
    changing = Changing(ground, 1_000_003)
    snapshot = changing.snapshot()
    with pytest.raises(OSError, match="BTRFS_IOC"):
        differences(str(tmp_path), str(snapshot))
    changing.remove()
