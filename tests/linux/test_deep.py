"""Folder trees deeper than Python's recursion limit, and than the longest path of a system call."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from waypoint.linux.storage import beneath, deep
from waypoint.linux.storage.descriptors import open_folder

LEVELS = 3000


def make_levels(above: Path, levels: int = LEVELS, name: str = "k") -> None:
    """Make nested folders, each with a file."""
    folder = os.open(above, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=folder)
        below = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(folder)
        folder = below
    os.close(folder)


@pytest.fixture
def corner(tmp_path: Path) -> Iterator[Path]:
    """A folder whose content is removed after the test, because the content is too deep for pytest to remove."""
    yield tmp_path
    for path in tmp_path.iterdir():
        deep.remove_path(path)


@pytest.mark.soak(part="load")
def test_a_deep_tree_is_walked_bottom_up_and_removed(corner: Path) -> None:
    (corner / "outside").mkdir()
    (corner / "outside/file").touch()
    (corner / "tree/side/empty").mkdir(parents=True)
    (corner / "tree/side/link").symlink_to(corner / "outside")
    make_levels(corner / "tree")
    with open_folder(corner) as fd:
        order = [(visit.folders, visit.others) for visit in deep.walk(fd, "tree")]
    assert len(order) == LEVELS + 3
    assert sorted(order[-1][0]) == ["k", "side"]
    assert order.count((["empty"], ["link"])) == 1
    assert order.count((["k"], ["file"])) == LEVELS - 1
    deep.remove_path(corner / "tree")
    deep.remove_path(corner / "tree")
    assert [path.name for path in corner.rglob("*")] == ["outside", "file"]


def test_removing_a_link_leaves_its_target(corner: Path) -> None:
    (corner / "outside").mkdir()
    (corner / "link").symlink_to(corner / "outside")
    deep.remove_path(corner / "link")
    assert [path.name for path in corner.iterdir()] == ["outside"]


def test_a_folder_moved_during_a_walk_raises_estale(corner: Path) -> None:
    (corner / "tree/a/b").mkdir(parents=True)
    (corner / "other").mkdir()
    with open_folder(corner) as fd:
        visits = deep.walk(fd, "tree")
        assert next(visits).folders == []
        (corner / "tree/a/b").rename(corner / "other/b")
        with pytest.raises(OSError, match="moved") as caught:
            next(visits)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.soak(part="load")
@pytest.mark.parametrize("name", ["k", "name-of-250-bytes" + "é" * 116])
def test_paths_longer_than_the_kernel_takes_are_opened(corner: Path, name: str) -> None:
    make_levels(corner, name=name, levels=2500 if name == "k" else 20)
    path = "/".join([name] * (2500 if name == "k" else 20))
    assert len(os.fsencode(path)) > 4095
    with open_folder(corner) as fd:
        with beneath.opened(fd, f"/{path}/file", os.O_RDONLY) as file:
            assert os.fstat(file).st_size == 0
        with beneath.parent_of(fd, f"{path}/file") as (above, last):
            assert os.path.lexists(f"{beneath.name_of(above)}/{last}")
        with pytest.raises(FileNotFoundError):
            beneath.open_beneath(fd, f"{path}/missing/file", os.O_RDONLY)
