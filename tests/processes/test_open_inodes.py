"""Inode numbers of the files that processes have open: a restore finds those that differ."""

import os
import shutil
from pathlib import Path

import pytest

from tests.processes.test_linked_files import FILE, FILES, image
from waypoint.linux.storage.descriptors import open_folder
from waypoint.processes.criu import inodes
from waypoint.processes.criu.messages import encode

ORIGIN = "trusted.overlay.origin"


@pytest.mark.privileged
def test_open_files_with_other_numbers_are_found(tmp_path: Path) -> None:
    images, tree = tmp_path / "images", tmp_path / "tree"
    images.mkdir()
    tree.mkdir()
    names = ("same", "made-again", "of-the-base", "of-the-base-no-more")
    for name in names:
        (tree / name).touch()
        if name.startswith("of"):
            os.setxattr(tree / name, ORIGIN, b"a handle")
    opened = [
        encode(FILE, {"type": 1, "id": at, "reg": {"id": at, "name": f"/{name}"}}) for at, name in enumerate(names)
    ]
    (images / "files.img").write_bytes(image(FILES, *opened))
    with open_folder(images) as images_fd, open_folder(tree) as tree_fd:
        inodes.note(images_fd, tree_fd, lambda path: path[1:])
        assert inodes.changed(images_fd, tree_fd) == []
        for name in ("made-again", "of-the-base"):
            shutil.copy2(tree / name, tree / "copy")  # with its attributes
            os.rename(tree / "copy", tree / name)
        os.removexattr(tree / "of-the-base-no-more", ORIGIN)
        (tree / "same").write_text("changed")
        assert inodes.changed(images_fd, tree_fd) == ["made-again", "of-the-base-no-more"]
