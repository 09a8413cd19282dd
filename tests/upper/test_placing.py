"""Placing files in the upper tree of a session: nothing outside of it is reached, and removed folders stay removed."""

import os
from pathlib import Path

import pytest

from waypoint.linux.storage.filesystem import WHITEOUT_DEVICE
from waypoint.upper import layout
from waypoint.upper.marks import OPAQUE, REDIRECT
from waypoint.upper.placing import Occupied, Where, place

pytestmark = [pytest.mark.privileged, pytest.mark.requires("root")]


@pytest.fixture
def where(tmp_path: Path) -> Where:
    """A session over a base with /srv (mode 0711), /srv/file and the link /away; with an overlay at /data, too."""
    base = tmp_path / "base"
    for folder in ("srv", "data", "outside"):
        (base / folder).mkdir(parents=True)
    (base / "srv").chmod(0o711)
    (base / "srv/file").touch()
    (base / "away").symlink_to("/outside")
    for target in ("/", "/data"):
        os.makedirs(layout.upper_of(str(tmp_path / "tree"), target))
    return Where(str(tmp_path / "tree"), ["/", "/data"], str(base))


def upper(where: Where, path: str, target: str = "/") -> Path:
    return Path(layout.upper_of(where.tree, target), path)


def put(where: Where, path: str, *, folder: bool = True) -> None:
    place(where, path, (7, 8), lambda _fd, target: os.mkdir(target) if folder else Path(target).touch())


def whiteout(path: Path) -> None:
    os.mknod(path, 0o600 | 0o020000, WHITEOUT_DEVICE)


def test_missing_folders_are_made_as_the_base_has_them(where: Where) -> None:
    put(where, "/srv/new/model")
    assert upper(where, "srv").stat().st_mode & 0o7777 == 0o711
    assert (upper(where, "srv/new").stat().st_uid, upper(where, "srv/new/model").is_dir()) == (7, True)
    assert os.listxattr(upper(where, "srv")) == []
    put(where, "/data/x", folder=False)
    assert upper(where, "x", "/data").is_file()


def test_a_removed_folder_does_not_show_the_files_of_the_base_again(where: Where) -> None:
    whiteout(upper(where, "srv"))
    put(where, "/srv/model")
    assert os.getxattr(upper(where, "srv"), OPAQUE) == b"y"
    whiteout(upper(where, "data"))  # the mount point is elsewhere: /data has an overlay of its own
    whiteout(upper(where, "file"))
    put(where, "/file")
    assert os.getxattr(upper(where, "file"), OPAQUE) == b"y"


@pytest.mark.parametrize("path", ["/srv/file", "/srv/file/x", "/away/x", "/link/x", "/moved/x", "/srv"])
def test_a_path_that_exists_or_leads_elsewhere_is_refused(where: Where, path: str) -> None:
    upper(where, "link").symlink_to(where.base)
    upper(where, "moved").mkdir()
    os.setxattr(upper(where, "moved"), REDIRECT, b"/srv")
    with pytest.raises(Occupied):
        put(where, path)
    assert sorted(os.listdir(where.base)) == ["away", "data", "outside", "srv"]
    assert os.listdir(f"{where.base}/outside") == []
