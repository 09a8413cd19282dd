"""A writer that is killed at a step of the write order leaves the former state or the new one, never half an image.
Neither does one whose disk is full.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.stores import add_image, put_folder, take_out
from waypoint.linux.storage import filesystem
from waypoint.linux.storage.descriptors import open_folder
from waypoint.model.errors import Failed
from waypoint.store import manifest
from waypoint.store.manifest import ImageLayer
from waypoint.store.scan import store_folder
from waypoint.store.steps import Step, observe
from waypoint.store.store import Store, make_store
from waypoint.store.upkeep import gc, verify

KILLED = """
import os, sys
from pathlib import Path
from tests.store.stores import add_image, put_folder
from waypoint.store import steps, upkeep
from waypoint.store.store import Store
step, path, folder, *keep = sys.argv[1:]
store = Store(path)
def kill(at):
    if at == step:
        os.kill(os.getpid(), 9)
steps.observe(kill)
if folder:
    add_image(store, put_folder(store, Path(folder)))
else:
    upkeep.gc(store, keep)
"""
IMAGE_STEPS = [Step.PACK_WRITTEN, Step.PACK_NAMED, Step.INDEXED, Step.PACKS_DURABLE, Step.IMAGE_WRITTEN]


def killed_at(step: Step, store: Store, *rest: str) -> None:
    words = [sys.executable, "-c", KILLED, step, store.path, *rest]
    assert subprocess.run(words, check=False).returncode == -9


@pytest.mark.parametrize("step", IMAGE_STEPS)
def test_a_writer_killed_at_any_step_leaves_whole_images(store: Store, tmp_path: Path, step: Step) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("before" * 100)
    before = add_image(store, put_folder(store, folder))
    (folder / "file").write_text("after" * 1000)
    killed_at(step, store, str(folder))
    assert verify(store, read_data=True) == []
    assert len(store.image_ids()) == (2 if step == Step.IMAGE_WRITTEN else 1)
    after = put_folder(store, folder)  # done again
    image = add_image(store, after)
    assert {*store.image_ids()} == {before, image}
    assert (take_out(store, after, tmp_path / "copy") / "file").read_text() == "after" * 1000
    gc(store, [before])
    assert verify(store, read_data=True) == []


@pytest.mark.parametrize("step", [Step.COPIED, Step.REPLACED])
def test_a_gc_killed_at_any_step_loses_nothing(store: Store, tmp_path: Path, step: Step) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    images = []
    for number in range(10):  # small packs, which a gc merges
        (folder / "file").write_text(f"{number}" * 1000)
        root = put_folder(store, folder)
        images.append(add_image(store, root))
    killed_at(step, store, "", *images)
    assert verify(store, read_data=True) == []
    assert {*store.image_ids()} == {*images}
    gc(store, images[5:])
    assert len(store.pack_names()) == 1
    assert (take_out(store, root, tmp_path / "copy") / "file").read_text() == "9" * 1000


def add_at_once(store: Store, folder: Path) -> None:
    """Store a folder and add its image, with one writer."""
    with store.writing() as writer, open_folder(folder) as fd:
        layer = ImageLayer(roots={"main": store_folder(writer, fd).hex()})
        writer.add_image(manifest.new([], {"files": layer}, {}, {}))


def fill(path: Path, room: int) -> None:
    """Write a file that leaves `room` bytes of the disk free."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, filesystem.free_bytes(path) - room))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.privileged
def test_a_disk_that_is_full_at_any_step_leaves_whole_images(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    store = make_store(str(disk / "store"))
    (tmp_path / "folder/file").write_text("before")
    before = add_image(store, put_folder(store, tmp_path / "folder"))
    failed_after, codes, page = set[Step | None](), set[str](), os.sysconf("SC_PAGESIZE")
    for pages in (0, 20, *range(50, 80)):
        (tmp_path / "folder/file").write_bytes(content := os.urandom(50 * page - 1000))
        fill(disk / "filler", pages * page)
        reached: list[Step | None] = [None]
        observe(reached.append)
        try:
            add_at_once(store, tmp_path / "folder")
        except Failed as error:
            codes.add(error.code)
            failed_after.add(reached[-1])
        observe(None)
        (disk / "filler").unlink()
        assert verify(store, read_data=True) == []
        root = put_folder(store, tmp_path / "folder")  # done again
        image = add_image(store, root)
        assert (take_out(store, root, tmp_path / f"copy-{pages}") / "file").read_bytes() == content
        gc(store, [before])
        assert store.image_ids() == [before] != [image]
    at = {None, Step.PACK_NAMED, Step.PACKS_DURABLE}  # while the pack, the index and the manifest are written
    assert (failed_after, codes) == (at, {"disk-full"})
