"""Folders whose content somebody else controls."""

import errno
import os
from pathlib import Path

import pytest

from waypoint.linux.storage import beneath


@pytest.fixture
def folder(tmp_path: Path) -> int:
    """A descriptor of a folder that holds a file, links and a way out."""
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (inside / "file").write_text("inside")
    (tmp_path / "file").write_text("outside")
    (inside / "link").symlink_to("file")
    (inside / "sub/up").symlink_to("..")
    return os.open(inside, os.O_PATH)


@pytest.mark.parametrize("path", ["file", "/file", "../file", "sub/../../file", "/../../file"])
def test_no_path_leads_out_of_the_folder(folder: int, path: str) -> None:
    with os.fdopen(beneath.open_beneath(folder, path, os.O_RDONLY)) as file:
        assert file.read() == "inside"
    os.close(folder)


@pytest.mark.parametrize("path", ["link", "sub/up/file"])
def test_links_are_not_followed(folder: int, path: str) -> None:
    with pytest.raises(OSError, match="openat2") as caught:
        beneath.open_beneath(folder, path, os.O_RDONLY)
    assert caught.value.errno == errno.ELOOP
    assert caught.value.filename == path
    os.close(folder)


@pytest.mark.parametrize("link", ["link", "absolute", "out"])
def test_links_lead_nowhere_but_into_the_root(folder: int, tmp_path: Path, link: str) -> None:
    (tmp_path / "inside/absolute").symlink_to("/file")
    (tmp_path / "inside/out").symlink_to("../../file")
    with os.fdopen(beneath.open_in_root(folder, link, os.O_RDONLY)) as file:
        assert file.read() == "inside"
    os.close(folder)


def test_files_can_be_made_beneath_the_folder(folder: int, tmp_path: Path) -> None:
    fd = beneath.open_beneath(folder, "/sub/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    assert os.get_inheritable(fd) is False
    os.close(fd)
    os.close(folder)
    assert (tmp_path / "inside/sub/new").exists()


def test_a_place_that_is_behind_a_link_is_misplaced(folder: int, tmp_path: Path) -> None:
    os.close(folder)
    for path in ("/link", "sub/up/file", "missing"):
        with (
            pytest.raises(OSError, match="is not where it was") as caught,
            beneath.MountPlace(str(tmp_path / "inside"), path).opened(),
        ):
            pass
        assert (caught.value.errno, caught.value.filename) == (beneath.MISPLACED, path)


def test_a_failure_at_a_place_tells_the_place(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(NotADirectoryError) as caught, beneath.MountPlace(str(tmp_path), "/sub").opened() as name:
        raise NotADirectoryError(errno.ENOTDIR, "so", name)
    assert caught.value.filename == "/sub"
