"""A writer that is killed at a step of the write order leaves the former state or the new one, never half an image."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.stores import add_image, put_folder, take_out
from waypoint.store.steps import Step
from waypoint.store.store import Store
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
